// @ts-check
// The story's tree. It uses no page, network or storage.

import { MODEL, packMarks, unpackMarks, WRITER } from "./authorship.js";

/**
 * @typedef {object} Choice a token that could be at a place
 * @property {number} id
 * @property {string} text
 * @property {number} p its probability
 *
 * @typedef {object} Piece a part of a text: one token, if probabilities were asked for
 * @property {string} text
 * @property {number[] | null} [ids] token ids; null if they aren't known
 * @property {number} [p] its probability
 * @property {Choice[]} [top] the most probable tokens at its place
 *
 * @typedef {object} Until where an alternative ends, in units that a writer counts in
 * @property {string} unit `words`, `sentences` or `paragraphs`
 * @property {number} count
 * @property {number} [from] the character of the node's text from which they are counted
 *
 * @typedef {object} StoryNode a place in a story. A generated node is an alternative.
 * @property {string} id
 * @property {string} parent
 * @property {Piece[]} pieces its text
 * @property {boolean} [typed] whether the writer wrote it
 * @property {boolean} [kept] whether the writer chose it
 * @property {boolean} [discarded]
 * @property {boolean} [whole] whether the ids of its piece are those of all the text up to here, tokenized at once
 * @property {boolean} [healed] whether its first token replaces the last one before it (token healing)
 * @property {boolean} [stem] whether it is only the beginning of an alternative, from which more like it continue
 * @property {string} [behind] of a typed node: the text after the cursor, also after all that was generated there
 * @property {string} [passage] of a typed node: the passage that its alternatives replace
 * @property {string} [marks] who wrote its text, passage and the text after the cursor, as authorship.js packs it
 * @property {string} [label] shown above it
 * @property {string} [name] its bookmark
 * @property {number} [batch] when it was asked for; those that were asked for together have the same one
 * @property {number} [order] its position in its batch
 * @property {number} [created] milliseconds since 1970
 * @property {string} [request] the id of its request
 * @property {number} [index] its index in that
 * @property {number} [after] the id of the last event read
 * @property {number} [seed]
 * @property {Record<string, any>} [settings] what it was sampled with
 * @property {Until} [until]
 * @property {number} [endsAt] where it was cut, in characters as the server counts them
 * @property {number} [length] tokens
 * @property {number} [milliseconds] how long its tokens took
 * @property {number} [follows] log-probability of the text after the cursor, given it
 * @property {string} [end] why it ended, in words; undefined while it is being written
 * @property {{ finish_reason: string, stop_reason?: string | null }} [reason]
 * @property {string} [fault] an error
 */

export const ROOT = "root";

export const textOf = (node) => node.pieces.map((piece) => piece.text).join("");

/** Make a random id, without crypto.randomUUID, which is missing over plain HTTP. */
export const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(10)), (byte) => byte.toString(16).padStart(2, "0")).join("");

export class Tree {
  #children = new Map(); // by parent, including discarded ones

  constructor(nodes = [], current = ROOT) {
    this.nodes = new Map(nodes.map((node) => [node.id, node]));
    for (const node of this.nodes.values()) this.#hang(node);
    this.current = this.has(current) ? current : ROOT;
    this.shown = [this.current]; // the nodes whose alternatives are shown; several when prompts are compared
  }

  has(id) {
    return id === ROOT || this.nodes.has(id);
  }

  /**
   * Add a node, unless it exists.
   * @param {Partial<StoryNode>} fields
   * @returns {StoryNode}
   */
  add(fields) {
    if (this.nodes.has(fields.id)) return this.nodes.get(fields.id);
    const node = /** @type {StoryNode} */ ({ id: newId(), pieces: [], batch: Date.now(), order: 0, ...fields });
    this.nodes.set(node.id, node);
    this.#hang(node);
    return node;
  }

  #hang(node) {
    const siblings = this.#children.get(node.parent);
    if (siblings) siblings.push(node);
    else this.#children.set(node.parent, [node]);
  }

  /** Return the path to a node, without the root, which has no text. */
  path(id) {
    const path = /** @type {StoryNode[]} */ ([]);
    for (let node = this.nodes.get(id); node; node = this.nodes.get(node.parent)) path.unshift(node);
    return path;
  }

  text(id) {
    return this.path(id).map(textOf).join("");
  }

  /** Return the text after a place as it is shown there; at a typed node, with the passage to rewrite. */
  after(id) {
    const path = this.path(id);
    const k = path.findLastIndex((node) => node.typed);
    const { passage = "", behind = "" } = path[k] ?? {};
    const generated = path.slice(k + 1);
    if (!generated.length) return passage + behind;
    return behind && gap(this.text(path[k].id), generated.map(textOf).join(""), behind) + behind;
  }

  /** Return the marks of all that is shown at a place. */
  marks(id) {
    const path = this.path(id);
    const marksOf = (node) => (node.typed ? unpackMarks(node.marks, textOf(node).length) : MODEL.repeat(textOf(node).length));
    const after = this.after(id);
    const { pieces, passage = "", behind = "", marks } = path.findLast((node) => node.typed) ?? { pieces: [] };
    const all = unpackMarks(marks, textOf({ pieces }).length + passage.length + behind.length);
    const known = all.slice(Math.max(0, all.length - after.length)).padStart(after.length, WRITER);
    return path.map(marksOf).join("") + known;
  }

  /**
   * Return what was sampled at the end of a path: the pieces after the node `before`, all with known tokens. If
   * `isHealed`, the first token replaces the last one before it.
   */
  generated(id) {
    const path = this.path(id);
    const isKnown = (node) => node.pieces.every((piece) => piece.ids) && !this.nodes.get(node.parent)?.passage; // versions of a passage follow another prompt
    let start = path.length;
    while (start > 0 && !path[start - 1].whole && isKnown(path[start - 1])) start--;
    const pieces = [];
    for (const node of path.slice(start)) {
      const last = node.healed && node.pieces.length && pieces.pop();
      if (last) pieces.push({ ...last, ids: last.ids.slice(0, -1) });
      pieces.push(...node.pieces);
    }
    const before = path[start - 1];
    const isHealed = Boolean(path.slice(start).find((node) => node.pieces.length)?.healed);
    return { before: before && isKnown(before) ? before : null, pieces, isHealed };
  }

  /** Return the prompt that continues a node: token ids if all are known, so nothing is evaluated again; else text. */
  prompt(id) {
    const { before, pieces, isHealed } = this.generated(id);
    if (!before) return this.text(id);
    const own = before.pieces.flatMap((piece) => piece.ids ?? []);
    return [...(isHealed ? own.slice(0, -1) : own), ...pieces.flatMap((piece) => piece.ids ?? [])];
  }

  /** Return a node's children, the newest batch first, each in its own order. @returns {StoryNode[]} */
  children(id) {
    return (this.#children.get(id) ?? [])
      .filter((node) => !node.discarded)
      .sort((a, b) => b.batch - a.batch || a.order - b.order);
  }

  /** Return the children to choose from. */
  alternatives(id) {
    return this.children(id).filter((node) => !node.typed && !node.stem);
  }

  /** Return the place where the alternatives of a stem are shown. */
  start(id) {
    return this.nodes.get(id)?.stem ? this.start(this.nodes.get(id).parent) : id;
  }

  /** Return the texts of all alternatives of a node, including discarded ones. */
  textsBelow(id) {
    return (this.#children.get(id) ?? []).filter((node) => !node.typed).map(textOf);
  }

  /** Return the children worth returning to: typed, kept or continued ones. */
  places(id) {
    return this.children(id).filter((node) => node.typed || node.kept || this.children(node.id).length > 0);
  }

  /**
   * Return the node of a place in an edited text, below the last node that the edit leaves as it was. A new one has
   * no id.
   * @param {string} before the text up to the place
   * @param {{ passage?: string, behind?: string, marks?: string }} [after] the passage to rewrite, the text after it,
   *   and the marks of all
   * @returns {Partial<StoryNode>}
   */
  written(before, { passage = "", behind = "", marks = "" } = {}) {
    let parent = this.current;
    while (!before.startsWith(this.text(parent))) parent = this.nodes.get(parent).parent;
    const rest = before.slice(this.text(parent).length);
    const isForThis = (node) => (node?.passage ?? "") === passage;
    if (!rest && isForThis(this.nodes.get(parent)) && this.after(parent) === passage + behind) return { id: parent };
    const isSame = (node) =>
      node.typed && textOf(node) === rest && isForThis(node) && (node.behind ?? "") === behind;
    const same = this.children(parent).find(isSame);
    if (same) return same;
    const node = { parent, pieces: rest ? [{ text: rest, ids: null }] : [], typed: true };
    const own = marks.slice(marks.length - rest.length - passage.length - behind.length);
    if (own.replaceAll(WRITER, "")) node.marks = packMarks(own);
    if (passage) node.passage = passage;
    if (behind) node.behind = behind;
    return node;
  }

  /** Return a new node like this one up to its piece k, with another token there. */
  forked(id, k, choice) {
    const { parent, healed, label, order, pieces } = this.nodes.get(id);
    return chosen({ parent, healed, pieces: [...pieces.slice(0, k), pieceOf(choice)], label: `${label ?? `Alternative ${order + 1}`}, forked` });
  }

  /** Return a new node of one token. If it is a part, the token starts in the text before the node. */
  chosen(parent, choice, isPart) {
    const piece = pieceOf(choice);
    return chosen({ parent, pieces: [isPart ? { ...piece, ids: null } : piece], label: "Another word" });
  }

  /** Return a new node that is the beginning of this one, up to the word that contains piece k. */
  upTo(id, k) {
    const { pieces } = this.nodes.get(id);
    let last = k;
    while (/^[\p{L}\p{N}'’]/u.test(pieces[last + 1]?.text)) last++;
    return this.before(id, last + 1);
  }

  /** Return a new node that is the beginning of this one, before its piece k. */
  before(id, k) {
    const { parent, healed, settings, label, order, pieces } = this.nodes.get(id);
    const kept = pieces.slice(0, k);
    const name = `${label ?? `Alternative ${order + 1}`}, a part`;
    return { parent, healed, settings, pieces: kept, label: name, kept: true, length: kept.length, end: "up to a word of your choice" };
  }

  /**
   * Return the stem of a node: its pieces within this many characters, or so much of its only piece. A new one has no
   * id. Without characters, it is the node's parent.
   */
  stem(id, letters) {
    const { parent, healed, pieces } = this.nodes.get(id);
    if (!letters) return { id: parent };
    const text = (k) => textOf({ pieces: pieces.slice(0, k) });
    const isWithin = (_, k) => text(k).length < letters && text(k + 1).trimEnd().length <= letters;
    const whole = pieces.filter(isWithin);
    const own = whole.length ? whole : [{ text: pieces[0].text.slice(0, letters), ids: null }];
    const isSame = (node) => node.stem && textOf(node) === textOf({ pieces: own });
    return this.children(parent).find(isSame) ?? { parent, healed, pieces: own, stem: true, length: own.length, end: "" };
  }

  /** Return a new node for a path of explored nodes. Continuations use their tokens. */
  explored(parent, path) {
    const isEnd = ({ finish_reason }) => finish_reason === "stop"; // a text that continues doesn't have this token
    const pieces = path
      .map((node) => ({ text: node.text, ids: isEnd(node) ? node.tokens.slice(0, -1) : node.tokens }))
      .filter((piece) => piece.ids.length);
    const length = pieces.reduce((sum, piece) => sum + piece.ids.length, 0);
    return { parent, pieces, label: "Explored", kept: true, length, end: "your choice" };
  }

  /** Go to a node, and show the alternatives of these. Returns whether anything changes. */
  go(id, shown = [id]) {
    const isOther = id !== this.current || shown.join() !== this.shown.join();
    this.current = id;
    this.shown = shown;
    return isOther;
  }
}

/** A chosen token. If it ends within a character, the next tokens complete it. */
const pieceOf = (choice) => ({ ...choice, text: choice.text.replace(/\ufffd+$/, ""), ids: [choice.id] });

/** A node that ends with a chosen token. */
const chosen = (fields) => ({ ...fields, kept: true, length: fields.pieces.length, end: "a word of your choice" });

/** Return the space between generated text and the text after it, if the writer had one before the cursor. */
export function gap(before, generated, behind) {
  const space = before.slice(before.trimEnd().length);
  return generated && !/\s$/.test(generated) && !/^\s/.test(behind) ? space : "";
}
