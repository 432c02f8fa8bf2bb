// @ts-check
// The context window: how much of the text the model sees, and the background that goes with it.

import { detokenize, tokenize } from "../lib/api.js";
import { find } from "../lib/dom.js";
import { words } from "../lib/length.js";
import { numbers, plural } from "../lib/messages.js";
import { matching } from "../story/lorebook.js";
import { arrangePrompt, beginning, tailTokens } from "../story/prompt.js";

const USUAL = 128; // tokens of an alternative, if the server chooses
const MOST_LETTERS = 12_000; // characters of the story around a passage to rewrite
const STEP = 1 / 8; // of the context; the beginning moves in steps, so that most requests share it
const MOST_BESIDE = 1 / 2; // of a prompt, for the background
const MOST_COUNTS = 200; // to remember

export class ContextWindow {
  #counts = new Map(); // of tokens, by text

  /** @param {import("./background.js").Background} background */
  constructor(background, size = Infinity) {
    this.background = background;
    this.size = size; // in tokens; infinite if the server doesn't say
  }

  /** Return the limit of a prompt in tokens, which leaves room for the alternatives. */
  room({ n = 1, max_tokens: length = USUAL } = {}) {
    const wanted = n * (length > 0 ? length : USUAL);
    return Math.floor(Math.max(this.size / 4, this.size - wanted - 1));
  }

  /** Return the limit of a prompt in characters, for short tokens. */
  letters(/** @type {{ n?: number, max_tokens?: number }} */ fields) {
    return Math.min(2 * this.room(fields), MOST_LETTERS);
  }

  /** The background that applies at the end of a text. */
  #backgroundOf(text) {
    const { memory, note, depth, lore } = this.background.values;
    const entries = matching(lore, text);
    return { memory, note, depth, entries, isEmpty: !memory.trim() && !note.trim() && !entries.length };
  }

  /**
   * Return the prompt to send for a node; null if the node's own prompt fits.
   * @param {import("../story/tree.js").Tree} tree
   * @param {string} id
   * @param {Record<string, any>} fields
   * @returns {Promise<number[] | null>}
   */
  async fit(tree, id, fields) {
    const [text, prompt, room] = [tree.text(id), tree.prompt(id), this.room(fields)];
    const isShort = prompt.length <= room || (typeof prompt === "string" && (await tokenize(prompt)).length <= room);
    if (isShort && this.#backgroundOf(text).isEmpty) return null;
    const { parts, place } = await this.compose(text, fields);
    const { ids, letters, isHealed } = tailTokens(text, place, tree.generated(id));
    const whole = parts.map((part) => part.text).join("");
    const head = await tokenize(whole.slice(0, whole.length - letters));
    return [...(isHealed ? head.slice(0, -1) : head), ...ids];
  }

  /** Return how many tokens to drop from the beginning of a text so that the rest fits. */
  #cut(length, room) {
    const left = length - room;
    const step = this.size * STEP;
    return left > 0 ? Math.min(Math.ceil(left / step) * step, length - 1) : 0;
  }

  /** Count the tokens of a prompt. An empty one has those that every prompt starts with. */
  async #count(text) {
    if (this.#counts.size > MOST_COUNTS) this.#counts.clear();
    if (!this.#counts.has(text)) this.#counts.set(text, (await tokenize(text)).length);
    return this.#counts.get(text);
  }

  /** Count the tokens that a text adds to a prompt. */
  async #cost(text) {
    return (await this.#count(text)) - (await this.#count(""));
  }

  /** Select the background that fits. `used` counts its tokens, and `omitted` has the lore entries that don't fit. */
  async #priced({ memory, note, depth, entries }, room) {
    const texts = [memory, note, ...entries.map((entry) => entry.text)].map((each) => each.trim());
    const [one, two, ...costs] = await Promise.all(texts.map((each) => (each ? this.#cost(`${each}\n\n`) : 0)));
    const most = Math.floor(room * MOST_BESIDE);
    const included = [];
    let used = one + two;
    const [has, may] = [used, most].map((each) => numbers.format(each));
    if (used > most) throw new Error(`Memory and the author's note have ${has} tokens; the limit is ${may}. Make them shorter.`);
    entries.forEach((entry, k) => {
      if (used + costs[k] > most) return;
      used += costs[k];
      included.push(entry);
    });
    return { memory, note, depth, entries: included, omitted: entries.filter((entry) => !included.includes(entry)), used };
  }

  /**
   * Compose what the model sees of a text.
   * @param {string} text
   * @param {Record<string, any>} fields of the request
   * @param {number} [around] tokens to reserve
   * @returns {Promise<{ parts: any[], place: number, from: number, omitted: any[] }>} as `arrangePrompt` returns it,
   *   with the `tokens` of each part. The prompt has the text from the character `from` on; `omitted` are lore
   *   entries that don't fit.
   * @throws {Error} if memory and note are too long
   */
  async compose(text, fields, around = 0) {
    const room = this.room(fields) - around;
    const { used, omitted, ...others } = await this.#priced(this.#backgroundOf(text), room);
    const [ids, first] = await Promise.all([tokenize(text), this.#count("")]);
    const cut = this.#cut(ids.length - first, room - used - first);
    const least = cut && (await detokenize(ids.slice(first, first + cut))).length;
    const from = cut && beginning(text, least);
    const { parts, place } = arrangePrompt({ ...others, text, from });
    const tokens = await Promise.all(parts.map((part) => this.#cost(part.text)));
    return { parts: parts.map((part, k) => ({ ...part, tokens: tokens[k] })), place, from, omitted };
  }

  /**
   * Compose a prompt that has as much of a text as fits.
   * @param {string} text
   * @param {(story: string) => Promise<string>} make makes the prompt from that
   * @param {Record<string, any>} fields of the request
   * @returns {Promise<{ prompt: string, from: number }>} `from` is as `compose` returns it
   * @throws {Error} if the prompt is too long without the text
   */
  async within(text, make, fields) {
    const around = (await tokenize(await make(""))).length;
    const most = this.room(fields);
    const [has, may] = [around, most].map((each) => numbers.format(each));
    if (around > most / 2) throw new Error(`The request has ${has} tokens without the story; the limit is half of ${may}. Make it shorter.`);
    const { parts, from } = await this.compose(text, fields, around);
    return { prompt: await make(parts.map((part) => part.text).join("")), from };
  }

  /**
   * Say how much of the text up to the cursor the model sees.
   * @param {string} text
   * @param {{ isWhole: boolean, ids?: number[] }} about whether that is all, and its tokens; without them, the server
   *   counts them
   */
  async draw(text, { isWhole, ids }) {
    if (this.size === Infinity) return;
    const asked = (this.asked = Promise.all([ids ?? tokenize(text), this.#priced(this.#backgroundOf(text), this.room())]));
    const answer = await asked.catch(() => null); // then the last one stays
    if (!answer || asked !== this.asked) return;
    const [{ length }, { used }] = answer;
    const all = words(text);
    const share = (this.room() - used) / length;
    const much = share < 1 ? `the last ${numbers.format(Number((all * share).toPrecision(2)))} of ${plural(all, "word")}` : `all ${plural(all, "word")}`;
    find("#seen").textContent = all ? `The model sees ${much}${isWhole ? "" : " before the cursor"}` : "";
  }
}
