// @ts-check
// My clichés, in the panel of stories: phrases that the model repeats. A click bans one in the settings, or lifts the
// ban.

import { create, find } from "../lib/dom.js";
import { plural } from "../lib/messages.js";
import { MODEL, runs } from "../story/authorship.js";
import { bannedIn, isBanned, repeatedPhrases, toggleBan } from "../story/cliches.js";
import { textOf } from "../story/tree.js";

export class Cliches {
  element = find("#cliches");

  /** @param {import("./desk.js").Desk} desk */
  constructor(desk) {
    this.desk = desk;
    this.element.addEventListener("toggle", () => this.draw());
  }

  /** The setting of banned phrases. */
  get #setting() {
    return this.desk.settings.fields.get("banned_strings").input;
  }

  draw() {
    if (!this.element.open || !this.element.checkVisibility()) return;
    const { tree, story } = this.desk;
    const alternatives = [...tree.nodes.values()].filter(({ typed, stem }) => !typed && !stem).map(textOf);
    const own = runs(story.marks).filter(([mark]) => mark !== MODEL).map(([, from, to]) => story.value.slice(from, to));
    const found = repeatedPhrases(alternatives, own);
    const isListed = (phrase) => found.some((each) => each.phrase.toLowerCase() === phrase.toLowerCase());
    const others = bannedIn(this.#setting.value).filter((phrase) => !isListed(phrase));
    const row = ({ phrase, count, own: mine }) =>
      this.#row(phrase, `in ${count} of ${alternatives.length} alternatives${mine ? `, ${plural(mine, "time")} in your words` : ""}`);
    find("ul", this.element).replaceChildren(...found.map(row), ...others.map((phrase) => this.#row(phrase, "banned")));
    find("[role=status]", this.element).textContent = found.length ? "" : "The model repeats nothing yet: no three words are in three alternatives.";
  }

  #row(phrase, about) {
    const button = create("button", { type: "button" });
    const name = () => {
      const isNow = isBanned(this.#setting.value, phrase);
      button.textContent = isNow ? "Lift the ban" : "Ban";
      button.setAttribute("aria-label", isNow ? `Lift the ban of “${phrase}”` : `Ban “${phrase}”`);
    };
    button.addEventListener("click", () => {
      this.#setting.value = toggleBan(this.#setting.value, phrase);
      this.#setting.dispatchEvent(new Event("input", { bubbles: true })); // saves it
      name();
    });
    name();
    return create("li", {}, create("span", {}, `“${phrase}” `, create("small", { textContent: about })), button);
  }
}
