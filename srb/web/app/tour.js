// @ts-check
// The tour of the first visit. A step ends when the writer did what it says. It stands in the bar, so it covers nothing,
// and never takes the keyboard from the text.

import { find, findAll, isFocusLost } from "../lib/dom.js";
import { loadLocal, saveLocal } from "../lib/local_storage.js";

const KEY = "srb-tour";
const EVENTS = ["input", "click", "keyup"];

/** @type {[target: string, title: string, text: string, isDone: (desk: import("../desk/desk.js").Desk) => boolean][]} */
const STEPS = [
  ["#manuscript", "Write", "Type how your story begins, or press one of the openings. Everything you type is saved.",
    ({ story }) => story.value.trim().includes(" ")],
  ["#generate", "Generate", "Press Generate, or Ctrl-Enter: the model writes several ways to go on. Keep typing meanwhile, if you like.",
    ({ cards }) => cards.cards.size > 0],
  ["#cards", "Keep", "Press Keep below the one that you like best. It is added to your text.",
    ({ tree }) => [...tree.nodes.values()].some(({ kept }) => kept)],
  ["#open-stories", "Go back", "Nothing is lost. Open Story: it has every version, your chapters and your other stories.",
    () => find("#stories").open],
  ["#open-options", "Make it yours", "Open Settings: how many alternatives, how long, how wild. Help has this tour again, and all keys.",
    () => find("#options").open],
];

export class Tour {
  #at = 0;
  element = find("#tour");

  /** @param {import("../desk/desk.js").Desk} desk */
  constructor(desk) {
    this.desk = desk;
    find("#show-tour").addEventListener("click", () => this.start());
    find("[value=next]", this.element).addEventListener("click", () => this.#go(this.#at + 1));
    find("[value=end]", this.element).addEventListener("click", () => this.#end());
    this.element.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation(); // the page would go to the first alternative
      this.#close();
    });
    const look = () => setTimeout(() => this.#look());
    for (const name of EVENTS) document.addEventListener(name, look);
    new MutationObserver(look).observe(find("#cards"), { childList: true });
  }

  /** Begin, unless the tour was ended or completed in this browser. */
  begin() {
    if (!loadLocal(KEY, false)) this.start();
  }

  start() {
    this.element.hidden = false;
    this.#go(0);
  }

  /** Go on if the writer has done what the step says. */
  #look() {
    if (!this.element.hidden && STEPS[this.#at][3](this.desk)) this.#go(this.#at + 1);
  }

  #go(at) {
    if (at === STEPS.length) return this.#end();
    this.#at = at;
    const [target, title, text] = STEPS[at];
    find("strong", this.element).textContent = title;
    find("span", this.element).textContent = text;
    find("small", this.element).textContent = `${at + 1} of ${STEPS.length}`;
    find("[value=next]", this.element).textContent = at + 1 < STEPS.length ? "Skip this" : "Done";
    this.#point(find(target));
  }

  #end() {
    saveLocal(KEY, true);
    this.#close();
  }

  /** Close it, until the next visit. */
  #close() {
    this.element.hidden = true;
    this.#point();
    if (isFocusLost() || this.element.contains(document.activeElement)) this.desk.story.focus();
  }

  #point(target) {
    for (const each of findAll(".toured")) each.classList.remove("toured");
    target?.classList.add("toured");
  }
}
