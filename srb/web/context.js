// How much of a text the model sees: all of it, or its end where it is longer than the context; and the note before it.

import { tokenize } from "./api.js";
import { Count } from "./count.js";

const REST = 400; // milliseconds without a key, until the server counts
const USUAL = 128; // tokens of an alternative, where that is left to the server
const MOST_LETTERS = 12_000; // of a story, that the model sees of it beside a passage
const STEP = 1 / 8; // of the context: so far the beginning moves at once, so that most requests have it in common

const numbers = new Intl.NumberFormat();

export class Context {
  // size: of the context, in tokens; undefined where the server doesn't say. asking: whose conversations have a system prompt in place of a note.
  constructor(size = Infinity, asking) {
    Object.assign(this, { size, asking });
    this.count = new Count();
    this.box = document.querySelector("#note");
    this.meter = document.querySelector("#meter");
    this.words = document.querySelector("#meter-words");
    if (size < Infinity) this.meter.max = size;
    else this.meter.parentElement.hidden = true;
  }

  get note() {
    return this.asking.isOn ? "" : this.box.value.trim();
  }

  // The tokens that a prompt may have, so that the alternatives have room behind it.
  #room({ n = 1, max_tokens: length = USUAL } = {}) {
    const wanted = n * (length > 0 ? length : USUAL);
    return Math.floor(Math.max(this.size / 4, this.size - wanted - 1));
  }

  // The letters that a prompt may have, so that its tokens have room if they are short.
  letters(fields) {
    return Math.min(2 * this.#room(fields), MOST_LETTERS);
  }

  // What is sent in place of a prompt, which is token ids or a text; null where that can be sent as it is.
  async fit(prompt, fields) {
    const ids = Array.isArray(prompt) ? prompt : await this.#count(prompt, fields);
    const room = this.#room(fields);
    if (!ids || (!this.note && ids.length <= room)) return null;
    const [first, note] = await Promise.all([tokenize(""), tokenize(this.note && `${this.note}\n\n`)]);
    const text = first.every((id, k) => ids[k] === id) ? ids.slice(first.length) : ids; // it begins only once
    const pinned = note.slice(0, room / 2);
    const left = text.length - (room - pinned.length);
    const step = this.size * STEP;
    return [...pinned, ...text.slice(left > 0 ? Math.min(Math.ceil(left / step) * step, text.length - 1) : 0)];
  }

  // The token ids of a text that isn't sent as it is, so that evaluating it would be in vain; else null.
  async #count(text, fields) {
    if (!this.note && text.length <= this.#room(fields)) return null;
    return tokenize(text);
  }

  async idsOfCut(text, fields) {
    const ids = await this.#count(text, fields);
    return ids && (this.note || ids.length > this.#room(fields)) ? ids : null;
  }

  // Shows how full it is with a text. ids: those of its tokens, where they are known; else the server counts them.
  draw(text, ids) {
    if (ids) this.count.know(text, ids.length);
    this.#show(text);
    clearTimeout(this.resting);
    if (this.size < Infinity && !this.count.of(text).isExact) this.resting = setTimeout(() => this.#ask(text), REST);
  }

  async #ask(text) {
    const ids = await tokenize(text).catch(() => null); // it stays an estimate
    if (!ids || text !== this.text) return;
    this.count.know(text, ids.length);
    this.#show(text);
  }

  #show(text) {
    this.text = text;
    const { tokens, isExact } = this.count.of(text);
    this.meter.value = tokens;
    const words = `${isExact ? "" : "about "}${numbers.format(tokens)}`;
    const [room, size] = [this.#room(), this.size].map((each) => numbers.format(each));
    this.words.textContent = tokens > this.#room() ? `${words} tokens: the model sees the last ${room}` : `${words} of ${size} tokens`;
  }
}
