// @ts-check
// What the model thought of the words of a text, asked anew where the page doesn't know it: in a story that comes from the server, and in
// an imported tree.

import { score, tokenize } from "../lib/api.js";
import { showError } from "../lib/messages.js";
import { LIKELIEST } from "../settings/settings.js";
import { healFirst, pieceOf } from "../story/generation.js";
import { textOf } from "../story/tree.js";

// The tokens of a text behind another one: {before, own, taken}, where `own` begin with the last `taken` tokens of what is before it, if
// they are others together. Both are as the server tokenizes texts.
export function tokensAfter(before, whole) {
  const differs = before.findIndex((id, k) => id !== whole[k]);
  const from = differs < 0 ? before.length : differs;
  return { before: whole.slice(0, from), own: whole.slice(from), taken: before.length - from };
}

// The pieces of a text for a node that gets them: a token each. null where its tokens make another text. tokens: as `score` tells of them.
// taken: how many tokens of the text before it they take the place of. A token that has letters of both texts makes a healed node, if it
// takes the place of one.
export function piecesOf(node, text, tokens, taken) {
  const decoder = new TextDecoder(); // a character may be made of several tokens
  const texts = tokens.map(({ bytes }) => decoder.decode(new Uint8Array(bytes), { stream: true }));
  const all = texts.join("");
  if (!all.endsWith(text)) return null;
  let [from, before] = [0, all.length - text.length]; // letters before the text, in the tokens from there on
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

// The `pieces` of a text that stands behind another one, as the model sees that; null where its tokens make another text. With them, what
// else such a node has: `healed`. fields: of a request, for which there is room. stored: the text's own token ids, if they are known.
export async function scorePassage({ context }, before, text, fields, stored) {
  const { parts } = await context.compose(before, fields);
  const seen = parts.map((part) => part.text).join("");
  const ids = await tokenize(seen);
  const known = stored ? { before: ids, own: stored, taken: 0 } : tokensAfter(ids, await tokenize(seen + text));
  const made = {};
  made.pieces = piecesOf(made, text, await score(known.before, known.own, LIKELIEST), known.taken);
  return made;
}

export class Probabilities {
  #asked = new Set();

  constructor(desk) {
    this.desk = desk;
  }

  // Asks for the words of a node, if they aren't known and haven't been asked for. Returns whether they are there now and weren't before.
  async ask(node) {
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

  // Asks for those of all these, one after the other.
  async all(nodes) {
    for (const node of nodes) await this.ask(node);
  }

  // The versions of a passage were drawn behind a template, and not behind what stands before them.
  #isBare({ pieces, parent, typed, end }) {
    return !typed && end !== undefined && !this.desk.tree.nodes.get(parent)?.passage && pieces.some(({ text, top }) => text && !top);
  }

  async #ask(node) {
    const { cards, tree } = this.desk;
    const text = textOf(node);
    const stored = !node.healed && node.pieces.every(({ ids }) => ids) && node.pieces.flatMap(({ ids }) => ids);
    const made = await scorePassage(this.desk, tree.text(node.parent), text, { n: 1, max_tokens: text.length }, stored);
    if (!made.pieces || textOf(node) !== text) return false; // it has gone on meanwhile
    Object.assign(node, made);
    cards.redraw(node);
    this.desk.save(node);
    return true;
  }
}
