// @ts-check
// The word count of the text, and of the day with its goal. This browser stores the day's count, for all stories.

import { words } from "../lib/length.js";
import { loadLocal, saveLocal } from "../lib/local_storage.js";
import { plural, showError } from "../lib/messages.js";

const KEY = "srb-day";

const numbers = new Intl.NumberFormat();

/**
 * Return how many words a change adds, without counting the whole text.
 * @param {string} text after the change
 * @param {{ at: number, removed: string, added: string }} change
 * @returns {number}
 */
export function wordsAdded(text, { at, removed, added }) {
  const end = at + added.length;
  let [from, to] = [at, end];
  while (from > 0 && /\S/.test(text[from - 1])) from--;
  while (to < text.length && /\S/.test(text[to])) to++;
  const [left, right] = [text.slice(from, at), text.slice(end, to)];
  return words(left + added + right) - words(left + removed + right);
}

/**
 * Return a day's count after `by` more words. Deleting older text doesn't go below zero.
 * @param {{ date?: string, words?: number, goal?: number }} day
 * @param {string} now
 * @param {number} [by]
 */
export function updateDay({ date, words: before = 0, goal }, now, by = 0) {
  return { date: now, words: Math.max(0, (date === now ? before : 0) + by), goal };
}

/**
 * Describe both counts.
 * @param {number} all
 * @param {{ words: number, goal?: number }} day
 */
export function describeCount(all, { words: today, goal }) {
  const [done, wanted] = [today, goal].map((each) => numbers.format(each ?? 0));
  return `${plural(all, "word")} · ${goal ? `${done} of ${wanted}` : done} today`;
}

export class WordCount {
  #all = 0;
  #day = {}; // used if the browser stores nothing

  /** @param {HTMLButtonElement} button */
  constructor(button) {
    this.button = button;
    button.addEventListener("click", () => this.#ask());
    addEventListener("storage", ({ key }) => key === KEY && this.#draw());
  }

  /**
   * Count the words of another text.
   * @param {string} text
   */
  show(text) {
    this.#all = words(text);
    this.#draw();
  }

  /**
   * Update the counts after typing.
   * @param {string} text after the change
   * @param {{ at: number, removed: string, added: string }} change
   */
  typed(text, change) {
    const by = wordsAdded(text, change);
    this.#all += by;
    if (by) this.#keep(updateDay(this.#read(), today(), by));
  }

  /**
   * Update the day's count after an alternative was kept, or that was undone.
   * @param {string} before
   * @param {string} now
   */
  changed(before, now) {
    this.#keep(updateDay(this.#read(), today(), words(now) - words(before)));
  }

  #ask() {
    const day = this.#read();
    const said = prompt("Words to write per day. Leave it empty for no goal.", day.goal ?? "");
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
    this.button.textContent = describeCount(this.#all, day);
    this.button.classList.toggle("reached", day.words >= (day.goal ?? Infinity));
  }
}

const today = () => new Date().toDateString();
