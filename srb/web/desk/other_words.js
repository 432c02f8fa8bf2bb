// @ts-check
// Other words for the one at the cursor, and alternatives that start with the chosen one.

import { showStatus } from "../lib/messages.js";
import { scorePassage } from "./probabilities.js";

const LONGEST = 60; // characters
const END = /[\p{L}\p{N}'’]*$/u;
const BEGIN = /^[\p{L}\p{N}'’]*/u;
const matchOf = (pattern, text) => pattern.exec(text)?.[0] ?? "";

/**
 * Find the word that contains or follows the cursor, or is selected.
 * @returns {[from: number, to: number] | null} with a single space before it; null if there is no word, or no text
 *   before it
 */
export function wordAt({ value, selection: [first, last] }) {
  const start = first - matchOf(END, value.slice(Math.max(0, first - LONGEST), first)).length;
  const end = start + matchOf(BEGIN, value.slice(start, first + LONGEST)).length;
  const isWithin = first + value.slice(first, last).trimEnd().length <= end;
  if (start === end || !isWithin || !/\S/.test(value.slice(0, start))) return null;
  return [/\S $/.test(value.slice(Math.max(0, start - 2), start)) ? start - 1 : start, end];
}

export class OtherWords {
  /**
   * @param {HTMLButtonElement} button
   * @param {import("./desk.js").Desk} desk
   * @param {import("./token_preview.js").TokenPreview} tokenPreview
   * @param {Function} choose continues from a choice in place of the word: (taken, choice, isPart), as in
   *   `Tree.chosen`
   */
  constructor(button, desk, tokenPreview, choose) {
    this.button = button;
    this.desk = desk;
    this.tokenPreview = tokenPreview;
    this.choose = choose;
    for (const name of ["selectionchange", "input", "change"]) document.addEventListener(name, () => this.draw());
    this.draw();
  }

  draw() {
    this.button.disabled = !wordAt(this.desk.story);
  }

  /** Show other words for the one at the cursor. A writer who types on isn't interrupted. */
  async look() {
    const { desk, tokenPreview } = this;
    const { story } = desk;
    const word = wordAt(story);
    if (!word) throw new Error("Put the cursor in a word that has text before it.");
    const taken = desk.take(word);
    const at = story.selection.join();
    showStatus("Looking for other words …");
    const asking = scorePassage(desk, taken.before, taken.passage, { n: 1, max_tokens: 1 });
    const { pieces, healed } = await asking.finally(() => showStatus(""));
    if (story.value !== taken.text || story.selection.join() !== at) return showStatus("The text or the cursor changed, so the other words aren't shown.");
    if (!pieces?.[0].top) throw new Error("There are no other words here: the model reads this word as one token with the text before it.");
    showStatus("Choose a word, or press Escape.");
    await story.bring(...word);
    tokenPreview.lookAt(story.box, story.place(...word), taken, pieces[0], (choice) => this.choose(taken, choice, healed));
    tokenPreview.element.addEventListener("beforetoggle", () => (story.shade(0, 0), showStatus("")), { once: true });
  }
}
