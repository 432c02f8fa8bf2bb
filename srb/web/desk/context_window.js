// @ts-check
// How much of a text the model sees: all of it, or its end where it is longer than the context; and what stands beside it.

import { detokenize, tokenize } from "../lib/api.js";
import { find } from "../lib/dom.js";
import { matching } from "../story/lorebook.js";
import { arrangePrompt, beginning, tailTokens } from "../story/prompt.js";

const REST = 400; // milliseconds without a key, until the server counts
const USUAL = 128; // tokens of an alternative, where that is left to the server
const MOST_LETTERS = 12_000; // of a story, that the model sees of it beside a passage
const STEP = 1 / 8; // of the context: so far the beginning moves at once, so that most requests have it in common
const MOST_BESIDE = 1 / 2; // of a prompt, for what stands beside the text

const MOST_COSTS = 200; // that are remembered

const numbers = new Intl.NumberFormat();

export class ContextWindow {
  #firstTokens = null; // a promise of what every prompt begins with
  #costs = new Map(); // tokens, by text
  used = 0; // tokens, by what stands beside the text

  // size: of the context, in tokens; undefined where the server doesn't say. beside: what stands beside the story.
  constructor(size = Infinity, background = undefined) {
    this.size = size;
    this.background = background;
    this.count = new TokenEstimate();
    this.meter = find("#meter");
    this.words = find("#meter-words");
    if (size < Infinity) this.meter.max = size;
    else this.meter.parentElement.hidden = true;
  }

  // The tokens that a prompt may have, so that the alternatives have room behind it.
  room({ n = 1, max_tokens: length = USUAL } = {}) {
    const wanted = n * (length > 0 ? length : USUAL);
    return Math.floor(Math.max(this.size / 4, this.size - wanted - 1));
  }

  // The letters that a prompt may have, so that its tokens have room if they are short.
  letters(fields) {
    return Math.min(2 * this.room(fields), MOST_LETTERS);
  }

  // What stands beside a text, at its end.
  #beside(text) {
    const { memory, note, depth, lore } = this.background.values;
    const entries = matching(lore, text);
    return { memory, note, depth, entries, isEmpty: !memory.trim() && !note.trim() && !entries.length };
  }

  // What is sent in place of the prompt of a node; null where that can be sent as it is.
  async fit(tree, id, fields) {
    const text = tree.text(id);
    if (this.#beside(text).isEmpty) return this.#fit(tree.prompt(id), fields);
    const { parts, place } = await this.compose(text, fields);
    const { ids, letters, isHealed } = tailTokens(text, place, tree.generated(id));
    const whole = parts.map((part) => part.text).join("");
    const head = await tokenize(whole.slice(0, whole.length - letters));
    return [...(isHealed ? head.slice(0, -1) : head), ...ids];
  }

  async #fit(prompt, fields) {
    const ids = Array.isArray(prompt) ? prompt : await this.#count(prompt, fields);
    const room = this.room(fields);
    if (!ids || ids.length <= room) return null;
    const first = await this.#first;
    const text = first.every((id, k) => ids[k] === id) ? ids.slice(first.length) : ids;
    return text.slice(this.#cut(text.length, room));
  }

  // How many tokens are left out at the beginning of a text, so that the rest has room.
  #cut(length, room) {
    const left = length - room;
    const step = this.size * STEP;
    return left > 0 ? Math.min(Math.ceil(left / step) * step, length - 1) : 0;
  }

  // The token ids of a text that isn't sent as it is, so that evaluating it would be in vain; else null.
  async #count(text, fields) {
    if (text.length <= this.room(fields)) return null;
    return tokenize(text);
  }

  async idsOfCut(tree, id, fields) {
    const text = tree.text(id);
    if (!this.#beside(text).isEmpty) return tokenize(text);
    const ids = await this.#count(text, fields);
    return ids && ids.length > this.room(fields) ? ids : null;
  }

  // The tokens of a text that stands behind another one.
  async #cost(text) {
    if (this.#costs.size > MOST_COSTS) this.#costs.clear();
    if (!this.#costs.has(text)) this.#costs.set(text, (await tokenize(text)).length);
    return this.#costs.get(text) - (await this.#first).length;
  }

  // What every prompt begins with.
  get #first() {
    return (this.#firstTokens ??= tokenize(""));
  }

  // What stands beside a text, as far as it has room, with the tokens that are `used`, and the entries that are `omitted`.
  async #priced({ memory, note, depth, entries }, room) {
    const told = [memory, note, ...entries.map((entry) => entry.text)].map((each) => each.trim());
    const [one, two, ...costs] = await Promise.all(told.map((each) => (each ? this.#cost(`${each}\n\n`) : 0)));
    const most = Math.floor(room * MOST_BESIDE);
    const kept = [];
    let used = one + two;
    const [has, may] = [used, most].map((each) => numbers.format(each));
    if (used > most) throw new Error(`Memory and the author's note have ${has} tokens; the limit is ${may}. Make them shorter.`);
    entries.forEach((entry, k) => {
      if (used + costs[k] > most) return;
      used += costs[k];
      kept.push(entry);
    });
    return { memory, note, depth, entries: kept, omitted: entries.filter((entry) => !kept.includes(entry)), used };
  }

  // What the model sees of a text, as prompt.js arranges it: {parts, place, from, omitted}. A part has its `tokens`, and the text begins
  // with the letter `from`. omitted: entries that have no room. around: tokens that stand around it. Throws an Error in words.
  async compose(text, fields, around = 0) {
    const room = this.room(fields) - around;
    const beside = this.#beside(text);
    const { used, omitted, ...others } = await this.#priced(beside, room);
    const [ids, first] = await Promise.all([tokenize(text), this.#first]);
    const cut = this.#cut(ids.length - first.length, room - used - first.length);
    const least = cut && (await detokenize(ids.slice(first.length, first.length + cut))).length;
    const from = cut && !beside.isEmpty ? beginning(text, least) : least;
    const { parts, place } = arrangePrompt({ ...others, text, from });
    const tokens = await Promise.all(parts.map((part) => this.#cost(part.text)));
    return { parts: parts.map((part, k) => ({ ...part, tokens: tokens[k] })), place, from, omitted };
  }

  // A prompt that has in it what the model sees of a text, as far as there is room: {prompt, from}, where `from` is as compose() has it.
  // make(story) is a promise of the prompt around that. Throws an Error in words.
  async within(text, make, fields) {
    const around = (await tokenize(await make(""))).length;
    const most = this.room(fields);
    const [has, may] = [around, most].map((each) => numbers.format(each));
    if (around > most / 2) throw new Error(`The request has ${has} tokens without the story; the limit is half of ${may}. Make it shorter.`);
    const { parts, from } = await this.compose(text, fields, around);
    return { prompt: await make(parts.map((part) => part.text).join("")), from };
  }

  // Shows how full it is with a text. ids: those of its tokens, where they are known; else the server counts them.
  draw(text, ids) {
    if (ids) this.count.know(text, ids.length);
    const isAlone = this.background.isEmpty; // which entries apply is looked up when nobody types
    if (isAlone) this.used = 0;
    this.#show(text);
    clearTimeout(this.resting);
    const isKnown = isAlone && this.count.of(text).isExact;
    if (this.size < Infinity && !isKnown) this.resting = setTimeout(() => this.#ask(text), REST);
  }

  async #ask(text) {
    const asked = [tokenize(text), this.#priced(this.#beside(text), this.room())];
    const [ids, { used }] = await Promise.all(asked).catch(() => [null, {}]); // it stays an estimate
    if (!ids || text !== this.text) return;
    this.used = used;
    this.count.know(text, ids.length);
    this.#show(text);
  }

  #show(text) {
    this.text = text;
    const { tokens, isExact } = this.count.of(text);
    const room = this.room() - this.used;
    const [own, all, last, size] = [tokens, tokens + this.used, room, this.size].map((each) => numbers.format(each));
    const about = isExact ? "" : "about ";
    this.meter.value = tokens + this.used;
    this.words.textContent = tokens > room ? `${about}${own} tokens: the model sees the last ${last}` : `${about}${all} of ${size} tokens`;
  }
}

// How many tokens a text has: those of what was counted last, and an estimate of what differs from that. Pure.

const LETTERS = 4; // of a token, where nobody has counted yet
const FEW = 50; // tokens, which don't say how many letters a token has

export class TokenEstimate {
  #text = "";
  #tokens = 0;

  know(text, tokens) {
    this.#text = text;
    this.#tokens = tokens;
  }

  of(text) {
    const letters = this.#tokens < FEW ? LETTERS : this.#text.length / this.#tokens;
    const tokens = this.#tokens + (text.length - this.#text.length) / letters;
    return { tokens: Math.max(0, Math.round(tokens)), isExact: text === this.#text };
  }
}
