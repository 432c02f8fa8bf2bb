// @ts-check
// Rewriting: alternatives for a selected passage. The model is asked by its chat template.

import { applyTemplate } from "../lib/api.js";
import { enableWhile, find, leaveText } from "../lib/dom.js";
import { safely } from "../lib/messages.js";

const FURTHER = 1000; // characters after the passage that the model sees

/**
 * Return the selection without spaces around it; null if it is empty.
 * @returns {[from: number, to: number] | null}
 */
export function selected({ value, selection: [from, to] }) {
  const passage = value.slice(from, to);
  const start = from + passage.length - passage.trimStart().length;
  return passage.trim() && [start, start + passage.trim().length];
}

const question = (story, passage, how) =>
  `This is a part of a story:\n\n${story}\n\nOne passage of it is to be written anew:\n\n${passage}\n\n${how} Answer with the new passage alone.`;

/**
 * Make the prompt, with as much of the story and its background as fits.
 * @param {{ before: string, passage: string, behind: string }} text
 * @param {string} how
 * @param {import("./context_window.js").ContextWindow} context
 * @param {Record<string, any>} fields
 */
export async function promptOf({ before, passage, behind }, how, context, fields) {
  const letters = context.letters(fields);
  const rest = behind.slice(0, Math.min(letters, FURTHER));
  const make = (story) => applyTemplate([{ role: "user", content: question(story + rest, passage, how) }]);
  return (await context.within(before.slice(-letters) + passage, make, fields)).prompt;
}

/** The maximal length of a version in tokens: twice the passage, at three characters per token. */
export const lengthOf = ({ length }) => Math.ceil((2 * length) / 3) + 64;

export class Rewriter {
  button = find("#rewrite");
  dialog = find("#rewriter");
  how = find("input", this.dialog);

  /** @param {import("./desk.js").Desk} desk */
  constructor(desk) {
    this.desk = desk;
    this.button.addEventListener("click", () => this.#open());
    enableWhile(this.button, () => selected(desk.story));
  }

  #open() {
    const { desk } = this;
    const taken = desk.take(selected(desk.story) ?? undefined);
    find("blockquote", this.dialog).textContent = taken.passage;
    find(".how", this.dialog).onsubmit = safely(() => desk.writing.rewrite(taken, this.how.value.trim()));
    this.how.value ||= find("option", this.dialog).value;
    leaveText(this.button);
    this.dialog.showModal();
    this.how.select();
  }
}
