// @ts-check
// The word count of the text, and of the day with its goal. This browser stores the day's counts, for all stories: of
// the writer's words, the model's and those that were pasted.

import { find } from "../lib/dom.js";
import { words, wordsOf } from "../lib/length.js";
import { loadLocal, saveLocal } from "../lib/local_storage.js";
import { numbers, plural, showError } from "../lib/messages.js";
import { MODEL, PASTED } from "../story/authorship.js";

const KEY = "srb-day";

/** @typedef {{ mine: number, model: number, pasted: number }} Counts words by who wrote their beginnings */
/** @typedef {{ value: string, marksOf: (from: number, to: number) => string }} Text and who wrote which part of it */
/** @typedef {{ at: number, removed: string, added: string, marks?: string }[]} Edits of a text, ascending */

const NAMES = { [MODEL]: "model", [PASTED]: "pasted" };
const KINDS = /** @type {(keyof Counts)[]} */ (["mine", "model", "pasted"]);

/** Count the words of a text by its marks, as authorship.js has them. */
export function countWords(/** @type {string} */ text, /** @type {string} */ marks) {
  const counts = { mine: 0, model: 0, pasted: 0 };
  for (const at of wordsOf(text)) counts[NAMES[marks[at]] ?? "mine"]++;
  return counts;
}

const minus = (/** @type {Counts} */ now, /** @type {Counts} */ before) =>
  ({ mine: now.mine - before.mine, model: now.model - before.model, pasted: now.pasted - before.pasted });

export const sum = ({ mine, model, pasted }) => mine + model + pasted;

/** Return how many words a change adds, by counting from its first edit to its last. */
export function wordsAdded(/** @type {Text} */ now, /** @type {Edits} */ edits) {
  const { value: text } = now;
  const [first, last] = [edits[0], edits.at(-1)].map((each) => each ?? { at: 0, added: "" });
  let [from, to] = [first.at, last.at + last.added.length]; // whole words
  while (from > 0 && /\S/.test(text[from - 1])) from--;
  while (to < text.length && /\S/.test(text[to])) to++;
  let [was, whose, done] = ["", "", from]; // before the change
  for (const { at, removed, added, marks = "" } of [...edits, { at: to, removed: "", added: "" }]) {
    was += text.slice(done, at) + removed;
    whose += now.marksOf(done, at) + marks;
    done = at + added.length;
  }
  return minus(countWords(text.slice(from, to), now.marksOf(from, to)), countWords(was, whose));
}

/**
 * Return a day's counts after more words. Deleting older text doesn't go below zero. `owed` counts what was deleted
 * below that, so that it counts for nothing when it comes back.
 * @param {{ date?: string, goal?: number, owed?: Partial<Counts> } & Partial<Counts>} day
 * @param {string} now
 * @param {Partial<Counts>} [by]
 * @param {boolean} [isBack] whether these words were in a text before: undone, or pasted after they were cut
 */
export function updateDay({ date, goal, owed: debts = {}, ...counts }, now, by = {}, isBack = false) {
  const day = { date: now, mine: 0, model: 0, pasted: 0, goal, owed: { mine: 0, model: 0, pasted: 0 } };
  for (const name of KINDS) {
    const [had, debt] = [counts, debts].map((each) => (date === now && each[name]) || 0);
    const added = by[name] ?? 0;
    const back = isBack ? Math.min(debt, Math.max(0, added)) : 0;
    const left = had + added - back;
    day[name] = Math.max(0, left);
    day.owed[name] = debt - back - Math.min(0, left);
  }
  return day;
}

export function describeCount(/** @type {number} */ all, /** @type {{ goal?: number } & Counts} */ { mine, model, pasted, goal }) {
  const own = `${numbers.format(mine)}${goal ? ` of ${numbers.format(goal)}` : ""} yours`;
  const others = [[model, "the model's"], [pasted, "pasted"]].filter(([count]) => count).map(([count, name]) => `${numbers.format(Number(count))} ${name}`);
  return `${plural(all, "word")} · today: ${[own, ...others].join(", ")}`;
}

export class WordCount {
  all = 0;
  #counted = ""; // the text that has so many words
  #day = {}; // used if the browser stores nothing
  button = find("#words");

  constructor() {
    this.button.addEventListener("click", () => this.#ask());
    addEventListener("storage", ({ key }) => key === KEY && this.#draw());
    addEventListener("focus", () => this.#draw()); // it may be another day
  }

  show(/** @type {string} */ text) {
    if (text !== this.#counted) [this.all, this.#counted] = [words(text), text];
    this.#draw();
  }

  /**
   * Update the counts after typing.
   * @param {Text} now after the change
   * @param {{ edits: Edits, by?: string }} typed
   * @param {{ isBack?: boolean }} [options] whether the words were in this story before: undone, redone, or marked one by one
   */
  typed(now, { edits, by: marks }, { isBack = Number(marks?.length) > 1 } = {}) {
    const by = wordsAdded(now, edits);
    this.all += sum(by);
    this.#counted = now.value;
    if (Object.values(by).some(Boolean)) this.#keep(updateDay(this.#read(), today(), by, isBack));
  }

  /**
   * Update the day's counts after an alternative was kept, text was replaced, or that was undone.
   * @param {{ text: string, marks: string }} before
   * @param {{ text: string, marks: string }} now
   * @param {{ isBack?: boolean }} [options] whether it was undone or redone
   */
  changed(before, now, { isBack = false } = {}) {
    const by = minus(countWords(now.text, now.marks), countWords(before.text, before.marks));
    this.#keep(updateDay(this.#read(), today(), by, isBack));
  }

  #ask() {
    const day = this.#read();
    const said = prompt("How many words do you want to write a day? Leave it empty for no goal.", day.goal ?? "");
    if (said === null) return;
    const goal = Number(said);
    if (!Number.isInteger(goal) || goal < 0) return showError(new Error(`The daily goal must be a number of words such as 500, not ${said}.`));
    this.#keep({ ...updateDay(day, today()), goal: goal || undefined });
  }

  #read() {
    return loadLocal(KEY, this.#day);
  }

  #keep(day) {
    this.#day = day;
    saveLocal(KEY, day);
    this.#draw();
  }

  #draw() {
    const day = updateDay(this.#read(), today());
    this.button.textContent = describeCount(this.all, day);
    this.button.classList.toggle("reached", day.mine >= (day.goal ?? Infinity));
  }
}

const today = () => new Date().toDateString();
