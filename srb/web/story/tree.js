// @ts-check
// The story's tree. Pure: no page, no network, no storage.

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
 * @property {boolean} [asked] whether an older page stored it as a question
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

// Random, and without crypto.randomUUID, which pages over plain HTTP don't have.
export const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(10)), (byte) => byte.toString(16).padStart(2, "0")).join("");

export class Tree {
  #children = new Map(); // the nodes below each node that has some, with those that were discarded

  constructor(nodes = [], current = ROOT) {
    this.nodes = new Map(nodes.map((node) => [node.id, node]));
    for (const node of this.nodes.values()) this.#hang(node);
    this.current = this.has(current) ? current : ROOT;
    this.shown = [this.current]; // the nodes whose alternatives are in sight: several where prompts are compared
  }

  has(id) {
    return id === ROOT || this.nodes.has(id);
  }

  // Adds a node of these fields; one that is there already stays.
  add(fields) {
    if (this.nodes.has(fields.id)) return this.nodes.get(fields.id);
    const node = { id: newId(), pieces: [], batch: Date.now(), order: 0, ...fields };
    this.nodes.set(node.id, node);
    this.#hang(node);
    return node;
  }

  #hang(node) {
    const siblings = this.#children.get(node.parent);
    if (siblings) siblings.push(node);
    else this.#children.set(node.parent, [node]);
  }

  // From the first node to this one; the root, which has no text, isn't among them.
  path(id) {
    const path = [];
    for (let node = this.nodes.get(id); node; node = this.nodes.get(node.parent)) path.unshift(node);
    return path;
  }

  text(id) {
    return this.path(id).map(textOf).join("");
  }

  // What stands behind a place, as it is shown there: on a typed node with the passage that is to be rewritten.
  after(id) {
    const path = this.path(id);
    const k = path.findLastIndex((node) => node.typed);
    const { passage = "", behind = "" } = path[k] ?? {};
    const generated = path.slice(k + 1);
    if (!generated.length) return passage + behind;
    return behind && gap(this.text(path[k].id), generated.map(textOf).join(""), behind) + behind;
  }

  // Who wrote what of all that is shown in a place: a mark for each letter.
  marks(id) {
    const path = this.path(id);
    const marksOf = (node) => (node.typed ? unpackMarks(node.marks, textOf(node).length) : MODEL.repeat(textOf(node).length));
    const after = this.after(id);
    const { pieces, passage = "", behind = "", marks } = path.findLast((node) => node.typed) ?? { pieces: [] };
    const all = unpackMarks(marks, textOf({ pieces }).length + passage.length + behind.length);
    const known = all.slice(Math.max(0, all.length - after.length)).padStart(after.length, WRITER);
    return path.map(marksOf).join("") + known;
  }

  // What was drawn at the end of a path: the pieces behind the node `before`, whose tokens are all known. isHealed: the first token
  // has the place of the last one before it.
  generated(id) {
    const path = this.path(id);
    const isKnown = (node) => node.pieces.every((piece) => piece.ids) && !this.nodes.get(node.parent)?.passage; // else drawn behind something else
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

  // What a request continues this node with: token ids where all are known, so that nothing is evaluated again; or text.
  prompt(id) {
    const { before, pieces, isHealed } = this.generated(id);
    if (!before) return this.text(id);
    const own = before.pieces.flatMap((piece) => piece.ids);
    return [...(isHealed ? own.slice(0, -1) : own), ...pieces.flatMap((piece) => piece.ids)];
  }

  // The newest batch first, and each in its own order.
  children(id) {
    return (this.#children.get(id) ?? [])
      .filter((node) => !node.discarded)
      .sort((a, b) => b.batch - a.batch || a.order - b.order);
  }

  // Those of them that a writer chooses from.
  alternatives(id) {
    return this.children(id).filter((node) => !node.typed && !node.stem);
  }

  // The place whose alternatives those below a stem are, too.
  start(id) {
    return this.nodes.get(id)?.stem ? this.start(this.nodes.get(id).parent) : id;
  }

  // The texts of all that was written below a node, discarded ones too.
  seen(id) {
    return (this.#children.get(id) ?? []).filter((node) => !node.typed).map(textOf);
  }

  // The nodes below one that are worth returning to: what was typed or chosen, and what others continue.
  places(id) {
    return this.children(id).filter((node) => node.typed || node.kept || this.children(node.id).length > 0);
  }

  // The node of a place in a text that was edited: below the last node that the edit left as it was. One that isn't there yet
  // has no id. before: the text up to there. Then the `passage` that is to be rewritten, and what is `behind`; marks: those of all.
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

  // A node, to be added, that begins as this one does, up to its piece k, and has another token there.
  forked(id, k, choice) {
    const { parent, healed, label, order, pieces } = this.nodes.get(id);
    return chosen({ parent, healed, pieces: [...pieces.slice(0, k), pieceOf(choice)], label: `${label ?? `Alternative ${order + 1}`}, forked` });
  }

  // A node, to be added, that has only this token. isPart: its text is a part of the token, which begins in the text before it.
  chosen(parent, choice, isPart) {
    const piece = pieceOf(choice);
    return chosen({ parent, pieces: [isPart ? { ...piece, ids: null } : piece], label: "Another word" });
  }

  // A node, to be added, that is the beginning of this one, up to the word that its piece k belongs to.
  upTo(id, k) {
    const { parent, healed, settings, label, order, pieces } = this.nodes.get(id);
    let last = k;
    while (/^[\p{L}\p{N}'’]/u.test(pieces[last + 1]?.text)) last++;
    const kept = pieces.slice(0, last + 1);
    const name = `${label ?? `Alternative ${order + 1}`}, a part`;
    return { parent, healed, settings, pieces: kept, label: name, kept: true, length: kept.length, end: "up to a word of your choice" };
  }

  // The stem of a node: as many of its pieces as are within so many letters, or so much of its first one, which is all that a server's
  // story has. One that isn't there yet has no id, and without letters it's the place that the node goes on from.
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

  // A node, to be added, of explored nodes that follow each other. What goes on from it goes on from their tokens.
  explored(parent, path) {
    const isEnd = ({ finish_reason }) => finish_reason === "stop"; // its token is no part of a text that goes on
    const pieces = path
      .map((node) => ({ text: node.text, ids: isEnd(node) ? node.tokens.slice(0, -1) : node.tokens }))
      .filter((piece) => piece.ids.length);
    const length = pieces.reduce((sum, piece) => sum + piece.ids.length, 0);
    return { parent, pieces, label: "Explored", kept: true, length, end: "your choice" };
  }

  // Goes there; returns whether that is another place.
  go(id, shown = [id]) {
    const isOther = id !== this.current || shown.join() !== this.shown.join();
    this.current = id;
    this.shown = shown;
    return isOther;
  }
}

// A token that was chosen. If it ends with a part of a character, the tokens after it complete that.
const pieceOf = (choice) => ({ ...choice, text: choice.text.replace(/\ufffd+$/, ""), ids: [choice.id] });

// A node that ends with it.
const chosen = (fields) => ({ ...fields, kept: true, length: fields.pieces.length, end: "a word of your choice" });

// The space between what was generated and what stands behind it, where the writer had one: before the cursor.
export function gap(before, generated, behind) {
  const space = before.slice(before.trimEnd().length);
  return generated && !/\s$/.test(generated) && !/^\s/.test(behind) ? space : "";
}
