// @ts-check
// The tour for the first visit: five steps, which a writer may skip for ever. It never takes the keyboard from
// the text.

import { find, findAll, isFocusLost } from "../lib/dom.js";
import { loadLocal, saveLocal } from "../lib/local_storage.js";

const KEY = "srb-tour";

/** @type {[target: string, title: string, text: string][]} */
const STEPS = [
  ["#manuscript", "Write", "Write how your story begins, or press one of the openings. Each key is saved."],
  ["#generate", "Generate", "Generate (Ctrl-Enter) writes several alternatives at the cursor. Go on typing meanwhile: nothing overwrites your text."],
  ["#cards", "Choose", "The alternatives appear below your text. Keep adds one to it, More like this varies it, and Discard removes it."],
  ["#open-stories", "Go back", "Undo takes back any of this. Story has all that was ever written: your other stories, chapters, search and the tree."],
  ["#open-options", "Make it yours", "Settings has how many alternatives, how long, and their style. Help has this tour, and all keys."],
];

export class Tour {
  #at = 0;

  /**
   * @param {HTMLElement} element
   * @param {() => void} leave called when the tour ends and the keyboard was in it
   */
  constructor(element, leave) {
    this.element = element;
    this.leave = leave;
    this.next = find("[value=next]", element);
    this.next.addEventListener("click", () => (this.#at + 1 < STEPS.length ? this.#show(this.#at + 1) : this.#end()));
    find("[value=skip]", element).addEventListener("click", () => this.#end());
    element.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation(); // the page would go to the first alternative
      this.#close();
    });
  }

  /** Begin, unless the tour was skipped or completed in this browser. */
  begin() {
    if (!loadLocal(KEY, false)) this.start();
  }

  start() {
    this.element.hidden = false;
    this.#show(0);
  }

  #show(at) {
    this.#at = at;
    const [target, title, text] = STEPS[at];
    find("h2", this.element).textContent = title;
    find("p", this.element).textContent = text;
    find("small", this.element).textContent = `${at + 1} of ${STEPS.length}`;
    this.next.textContent = at + 1 < STEPS.length ? "Next" : "Done";
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
    if (isFocusLost() || this.element.contains(document.activeElement)) this.leave();
  }

  /** Mark what a step is about. */
  #point(target) {
    for (const each of findAll(".toured")) each.classList.remove("toured");
    target?.classList.add("toured");
  }
}
