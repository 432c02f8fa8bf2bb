// @ts-check
// Rewriting: alternatives in place of a passage that is selected. The model is asked for them by its chat template.

import { applyTemplate } from "../lib/api.js";
import { find, leaveText } from "../lib/dom.js";

const FURTHER = 1000; // letters that the model sees of what is behind the passage

// What is selected, without the spaces around it; null where nothing is.
export function selected({ value, selection: [from, to] }) {
  const passage = value.slice(from, to);
  const start = from + passage.length - passage.trimStart().length;
  return passage.trim() && [start, start + passage.trim().length];
}

// The question for new versions of a passage. story: what stands around it, with it.
const question = (story, passage, how) =>
  `This is a part of a story:\n\n${story}\n\nOne passage of it is to be written anew:\n\n${passage}\n\n${how} Answer with the new passage alone.`;

// The prompt for that, with as much of the story, and of what stands beside it, as context.js has room for.
export async function promptOf({ before, passage, behind }, how, context, fields) {
  const letters = context.letters(fields);
  const rest = behind.slice(0, Math.min(letters, FURTHER));
  const make = (story) => applyTemplate([{ role: "user", content: question(story + rest, passage, how) }]);
  return (await context.within(before.slice(-letters) + passage, make, fields)).prompt;
}

// How many tokens a version has at most: twice as many as the passage, whose tokens may have three letters only.
export const lengthOf = ({ length }) => Math.ceil((2 * length) / 3) + 64;

export class Rewriter {
  // rewrite(taken, how) asks for alternatives.
  constructor(dialog, button, desk, rewrite) {
    const part = (selector) => find(selector, dialog);
    this.passage = part("blockquote");
    this.how = part("input");
    this.dialog = dialog;
    this.button = button;
    this.desk = desk;
    button.addEventListener("click", () => this.#open());
    document.addEventListener("selectionchange", () => this.draw());
    part(".how").addEventListener("submit", () => rewrite(this.taken, this.how.value.trim()));
    dialog.addEventListener("close", () => desk.story.resume());
  }

  draw() {
    this.button.disabled = !selected(this.desk.story);
  }

  #open() {
    this.taken = this.desk.take(selected(this.desk.story));
    this.passage.textContent = this.taken.passage;
    this.how.value ||= this.dialog.querySelector("option").value;
    leaveText(this.button);
    this.dialog.showModal();
    this.how.select();
  }
}
