// @ts-check
// The probabilities of words that the page doesn't have, as in a story from the server or an imported tree. The
// server scores the text again.

import { score, tokenize } from "../lib/api.js";
import { showError } from "../lib/messages.js";
import { LIKELIEST } from "../settings/settings.js";
import { healFirst, pieceOf } from "../story/generation.js";
import { textOf } from "../story/tree.js";

/** @typedef {import("../story/tree.js").StoryNode} StoryNode */

/**
 * Find the tokens that a text adds to the text before it.
 * @param {number[]} before
 * @param {number[]} whole
 * @returns {{ before: number[], own: number[], taken: number }} `own` replace the last `taken` tokens of the text
 *   before, if the tokenizer joins them
 */
export function tokensAfter(before, whole) {
  const differs = before.findIndex((id, k) => id !== whole[k]);
  const from = differs < 0 ? before.length : differs;
  return { before: whole.slice(0, from), own: whole.slice(from), taken: before.length - from };
}

/**
 * Return the pieces of a node's text, one per token; null if the tokens make another text. A first token that spans
 * both texts makes the node healed, if it replaces one token.
 * @param {{ healed?: boolean }} node
 * @param {string} text
 * @param {any[]} tokens as `score` returns them
 * @param {number} taken how many tokens of the text before they replace
 */
export function piecesOf(node, text, tokens, taken) {
  const decoder = new TextDecoder(); // a character may span tokens
  const texts = tokens.map(({ bytes }) => decoder.decode(new Uint8Array(bytes), { stream: true }));
  const all = texts.join("");
  if (!all.endsWith(text)) return null;
  let [from, before] = [0, all.length - text.length]; // characters before the text, in the tokens from `from` on
  while (before > 0 && before >= texts[from].length) before -= texts[from++].length;
  const isPart = before > 0;
  node.healed = (isPart && taken === 1 && from === 0) || undefined;
  const events = tokens.slice(from).map((token, k) => ({ ...token, text: texts[from + k], tokens: [token.id] }));
  if (isPart) {
    const first = { ...events[0], text: events[0].text.slice(before) };
    events[0] = node.healed ? healFirst(node, first) : { ...first, isUnknown: true, top_logprobs: undefined };
  }
  return events.map(pieceOf);
}

/**
 * Score a text after another one, as the model sees that.
 * @param {{ context: import("./context_window.js").ContextWindow }} desk
 * @param {string} before
 * @param {string} text
 * @param {Record<string, any>} fields of a request for which the prompt leaves room
 * @param {number[] | false} [stored] the text's token ids, if they are known
 */
export async function scorePassage({ context }, before, text, fields, stored) {
  const { parts } = await context.compose(before, fields);
  const seen = parts.map((part) => part.text).join("");
  const ids = await tokenize(seen);
  const known = stored ? { before: ids, own: stored, taken: 0 } : tokensAfter(ids, await tokenize(seen + text));
  const made = /** @type {{ pieces?: import("../story/tree.js").Piece[] | null, healed?: boolean }} */ ({});
  made.pieces = piecesOf(made, text, await score(known.before, known.own, LIKELIEST), known.taken);
  return made;
}

export class Probabilities {
  #asked = new Set();

  /** @param {import("./desk.js").Desk} desk */
  constructor(desk) {
    this.desk = desk;
  }

  /** Ask for the probabilities of a node, once. Returns whether they have just arrived. */
  async ask(/** @type {StoryNode} */ node) {
    if (!this.#isBare(node) || this.#asked.has(node)) return false;
    this.#asked.add(node);
    try {
      return await this.#ask(node);
    } catch (error) {
      this.#asked.delete(node);
      showError(error);
      return false;
    }
  }

  async all(/** @type {StoryNode[]} */ nodes) {
    for (const node of nodes) await this.ask(node);
  }

  /** Versions of a passage were sampled after a chat template, not after the text before them. */
  #isBare(/** @type {StoryNode} */ { pieces, parent, typed, end }) {
    return !typed && end !== undefined && !this.desk.tree.nodes.get(parent)?.passage && pieces.some(({ text, top }) => text && !top);
  }

  async #ask(node) {
    const { cards, tree } = this.desk;
    const text = textOf(node);
    const stored = !node.healed && node.pieces.every(({ ids }) => ids) && node.pieces.flatMap(({ ids }) => ids);
    const made = await scorePassage(this.desk, tree.text(node.parent), text, { n: 1, max_tokens: text.length }, stored);
    if (!made.pieces || textOf(node) !== text) return false; // the text has changed
    Object.assign(node, made);
    cards.redraw(node);
    this.desk.save(node);
    return true;
  }
}
