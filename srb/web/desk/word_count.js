// @ts-check
// How many words the text has, and how many of them were written today, with the goal of a day. This browser keeps the day's, for
// all stories.

import { words } from "../lib/length.js";
import { loadLocal, saveLocal } from "../lib/local_storage.js";
import { plural, showError } from "../lib/messages.js";

const KEY = "srb-day";

const numbers = new Intl.NumberFormat();

// How many more words a text has since a change, without a look at all of it. text: as it is now. Pure.
export function wordsAdded(text, { at, removed, added }) {
  const end = at + added.length;
  let [from, to] = [at, end];
  while (from > 0 && /\S/.test(text[from - 1])) from--;
  while (to < text.length && /\S/.test(text[to])) to++;
  const [left, right] = [text.slice(from, at), text.slice(end, to)];
  return words(left + added + right) - words(left + removed + right);
}

// What was written on a day, in words, so many later; what is deleted of an older text takes nothing away. Pure.
export function updateDay({ date, words: before = 0, goal }, now, by = 0) {
  return { date: now, words: Math.max(0, (date === now ? before : 0) + by), goal };
}

// What is said of both. Pure.
export function describeCount(all, { words: today, goal }) {
  const [done, wanted] = [today, goal].map((each) => numbers.format(each ?? 0));
  return `${plural(all, "word")} · ${goal ? `${done} of ${wanted}` : done} today`;
}

export class WordCount {
  #all = 0;
  #day = {}; // as this page knows it, where the browser keeps nothing

  constructor(button) {
    this.button = button;
    button.addEventListener("click", () => this.#ask());
    addEventListener("storage", ({ key }) => key === KEY && this.#draw());
  }

  // Another text is in sight.
  show(text) {
    this.#all = words(text);
    this.#draw();
  }

  // The writer has changed the text, which is so now.
  typed(text, change) {
    const by = wordsAdded(text, change);
    this.#all += by;
    if (by) this.#keep(updateDay(this.#read(), today(), by));
  }

  // Something was kept, or that was undone. The text is shown already.
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
    this.button.classList.toggle("reached", day.words >= day.goal);
  }
}

const today = () => new Date().toDateString();
