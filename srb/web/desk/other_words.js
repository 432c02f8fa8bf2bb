// @ts-check
// Other words in place of one that stands in the text, whoever wrote it: what is likely there, and alternatives that begin with a choice.

import { showStatus } from "../lib/messages.js";
import { scorePassage } from "./probabilities.js";

const LONGEST = 60; // letters of a word
const END = /[\p{L}\p{N}'’]*$/u;
const BEGIN = /^[\p{L}\p{N}'’]*/u;

// The word that the cursor is in or before, or that is selected: [from, to], with the space before it if that is one space. null where no
// word is, or nothing before it.
export function wordAt({ value, selection: [first, last] }) {
  const start = first - END.exec(value.slice(Math.max(0, first - LONGEST), first))[0].length;
  const end = start + BEGIN.exec(value.slice(start, first + LONGEST))[0].length;
  const isWithin = first + value.slice(first, last).trimEnd().length <= end;
  if (start === end || !isWithin || !/\S/.test(value.slice(0, start))) return null;
  return [/\S $/.test(value.slice(Math.max(0, start - 2), start)) ? start - 1 : start, end];
}

export class OtherWords {
  // choose(taken, choice, isPart) goes on from a choice in place of the passage that was taken. isPart: as tree.chosen() has it.
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

  // Shows what could stand in place of the word at the cursor. Whoever goes on writing meanwhile isn't interrupted.
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
