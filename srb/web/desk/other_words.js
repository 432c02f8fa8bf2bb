// @ts-check
// Other words for the one at the cursor: one that fits before the rest of the text replaces only this word; with one that
// is likely here, alternatives go another way.

import { complete } from "../lib/api.js";
import { enableWhile, find } from "../lib/dom.js";
import { safely, showStatus } from "../lib/messages.js";
import { MODEL } from "../story/authorship.js";
import { scorePassage } from "./probabilities.js";

const LONGEST = 60; // characters
const FURTHER = 1000; // characters of the rest that a word is to fit
const TRIES = 3; // each of as many words as alternatives
const MOST_SHOWN = 8;
const STOPS = [..." .,;:!?…—”\"»)]\n"]; // these end a word
const LAST = /[\p{L}\p{N}'’]+[^\p{L}\p{N}]*$/u;
const END = /[\p{L}\p{N}'’]*$/u;
const BEGIN = /^[\p{L}\p{N}'’]*/u;
const matchOf = (pattern, text) => pattern.exec(text)?.[0] ?? "";

/**
 * Find the word that contains or follows the cursor, or is selected, or else the last one before it.
 * @returns {[from: number, to: number] | null} with a single space before it; null if there is no word, or no text
 *   before it
 */
export function wordAt({ value, selection: [first, last] }) {
  const start = first - matchOf(END, value.slice(Math.max(0, first - LONGEST), first)).length;
  const end = start + matchOf(BEGIN, value.slice(start, first + LONGEST)).length;
  const back = start === end && first === last ? matchOf(LAST, value.slice(Math.max(0, first - LONGEST), first)).length : 0;
  if (back) return wordAt({ value, selection: [first - back, first - back] });
  const isWithin = first + value.slice(first, last).trimEnd().length <= end;
  if (start === end || !isWithin || !/\S/.test(value.slice(0, start))) return null;
  return [/\S $/.test(value.slice(Math.max(0, start - 2), start)) ? start - 1 : start, end];
}

export class OtherWords {
  /** @param {import("./desk.js").Desk} desk */
  constructor(desk) {
    this.desk = desk;
    const button = find("#other-words");
    const look = safely(() => this.#look());
    enableWhile(button, () => wordAt(desk.story));
    button.addEventListener("click", look);
    desk.story.box.addEventListener("keydown", (event) => {
      if (event.key !== "." || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      look(); // not a click: the button may not be enabled yet
    });
  }

  /** Show other words for the one at the cursor. A writer who types on isn't interrupted. */
  async #look() {
    const { desk } = this;
    const { story, tokenPreview } = desk;
    const word = wordAt(story);
    if (!word) throw new Error("Put the cursor in a word that has text before it.");
    const taken = desk.take(word);
    const at = story.selection.join();
    showStatus("Looking for other words …");
    const asking = Promise.all([scorePassage(desk, taken.before, taken.passage, { n: 1, max_tokens: 1 }), this.#fitting(taken)]);
    const [{ pieces, healed }, fitting] = await asking.finally(() => showStatus(""));
    if (story.value !== taken.text || story.selection.join() !== at) return showStatus("The text or the cursor changed, so the other words aren't shown.");
    if (!pieces?.[0].top) throw new Error("There are no other words here: the model reads this word as one with the text before it.");
    showStatus("Choose a word, or press Escape.");
    await story.bring(...word);
    const swaps = fitting.map((text) => ({ text, choose: () => this.#swap(word, taken, text) }));
    const choose = safely((choice) => {
      if (document.body.classList.contains("focused")) find("#focus").click(); // to show the alternatives
      return desk.writing.replaceWord(taken, choice, Boolean(healed));
    });
    tokenPreview.lookAt(story.box, story.place(...word), taken, pieces[0], choose, swaps);
    tokenPreview.element.addEventListener("beforetoggle", () => (story.shade(0, 0), showStatus("")), { once: true });
  }

  /** Return words that fit between the text before the word and the rest, the best first: bridges of one word. */
  async #fitting({ before, passage, behind }) {
    if (!behind.trim()) return [];
    const { context, settings } = this.desk;
    const word = passage.trimStart();
    const fields = { n: settings.n, max_tokens: 8 };
    const { parts } = await context.compose(before + passage.slice(0, passage.length - word.length), fields);
    const prompt = parts.map(({ text }) => text).join("");
    const bridge = { suffix: behind.slice(0, FURTHER), stop: STOPS, min_tokens: 1, heal: true };
    const texts = await complete({ prompt: Array(TRIES).fill(prompt), ...fields, ...bridge });
    const isWord = (text) => matchOf(BEGIN, text) === text && text && text !== word;
    return [...new Set(texts.filter(isWord))].slice(0, MOST_SHOWN);
  }

  #swap([, to], { passage }, text) {
    const start = to - passage.trimStart().length;
    this.desk.story.replace([[start, to]], text, MODEL);
    this.desk.story.goTo(start + text.length);
    this.desk.story.resume();
    showStatus(`“${passage.trim()}” is now “${text}”. Press Undo to bring it back.`);
  }
}
