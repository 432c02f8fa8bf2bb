// The story's tree. Pure: no page, no network, no storage.
//
// A node is {id, parent, pieces, whole, typed, batch, order, discarded} and what its card shows. Its text is a list of
// pieces {text, ids, p, top}: one token each while probabilities are on. `ids` are token ids, null where they aren't
// known; with `whole` they stand for the whole text from the start to here, as the server tokenized it at once. The first
// token of a `healed` node takes the place of the last one before it.

export const ROOT = "root";

export const textOf = (node) => node.pieces.map((piece) => piece.text).join("");

// Whether a node asks the model something. Its text is what the chat template makes of that, its label what was asked.
export const isTurn = (node) => Boolean(node?.typed && node.label);

// What a node says to a reader.
export const said = (node) => (isTurn(node) ? node.label : textOf(node));

// A path as people read it: {isAsked, text} of each question, and of all that was written between two of them.
export function spoken(path) {
  const parts = [];
  for (const node of path) {
    const isAsked = isTurn(node);
    if (isAsked || parts.at(-1)?.isAsked !== false) parts.push({ isAsked, text: said(node) });
    else parts.at(-1).text += said(node);
  }
  return parts;
}

const TITLE_LENGTH = 50;

// What a story that begins with this node is called.
export function titleOf(node) {
  const words = said(node).trim().replace(/\s+/g, " ");
  return words.length > TITLE_LENGTH ? words.slice(0, TITLE_LENGTH).replace(/ \S*$/, "") : words;
}

// Random, and without crypto.randomUUID, which pages over plain HTTP don't have.
export const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(10)), (byte) => byte.toString(16).padStart(2, "0")).join("");

export class Tree {
  #children = new Map(); // the nodes below each node that has some, with those that were discarded

  constructor(nodes = [], current = ROOT) {
    this.nodes = new Map(nodes.map((node) => [node.id, node]));
    for (const node of this.nodes.values()) this.#hang(node);
    this.current = this.has(current) ? current : ROOT;
    this.shown = [this.current]; // the nodes whose alternatives are in sight: several where prompts are compared
    this.history = [];
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

  // Where the text begins that is written on in a place: behind the last question on the way there, or at the root.
  beginning(id) {
    return this.path(id).findLast(isTurn)?.id ?? ROOT;
  }

  // The text that is written on there.
  own(id) {
    return this.text(id).slice(this.text(this.beginning(id)).length);
  }

  // What a request continues this node with: token ids where all are known, so that nothing is evaluated again; or text.
  prompt(id) {
    let ids = [];
    let isHealed = false; // whether the token before these has another in its place
    for (const node of this.path(id).reverse()) {
      if (node.pieces.some((piece) => !piece.ids)) break;
      const own = node.pieces.flatMap((piece) => piece.ids);
      ids = [...(isHealed ? own.slice(0, -1) : own), ...ids];
      isHealed = Boolean(node.healed && node.pieces.length);
      if (node.whole) return ids;
    }
    return this.text(id);
  }

  // The newest batch first, and each in its own order.
  children(id) {
    return (this.#children.get(id) ?? [])
      .filter((node) => !node.discarded)
      .sort((a, b) => b.batch - a.batch || a.order - b.order);
  }

  // The texts of all that was written below a node, discarded ones too.
  seen(id) {
    return (this.#children.get(id) ?? []).filter((node) => !node.typed).map(textOf);
  }

  // The nodes below one that are worth returning to: what was typed or chosen, and what others continue.
  places(id) {
    return this.children(id).filter((node) => node.typed || node.kept || this.children(node.id).length > 0);
  }

  // The node of a text that was edited: below the last node that the edit left as it was. One that isn't there yet
  // has no id.
  written(own) {
    const text = this.text(this.beginning(this.current)) + own;
    let parent = this.current;
    while (!text.startsWith(this.text(parent))) parent = this.nodes.get(parent).parent;
    const rest = text.slice(this.text(parent).length);
    if (!rest) return { id: parent };
    const same = this.children(parent).find((node) => node.typed && textOf(node) === rest);
    return same ?? { parent, pieces: [{ text: rest, ids: null }], typed: true };
  }

  // A node, to be added, that begins as this one does, up to its piece k, and has another token there.
  forked(id, k, choice) {
    const node = this.nodes.get(id);
    const text = choice.text.replace(/\ufffd+$/, ""); // a part of a character; the tokens after it complete it
    const pieces = [...node.pieces.slice(0, k), { ...choice, text, ids: [choice.id] }];
    const label = `${node.label ?? `Alternative ${node.order + 1}`}, forked`;
    return { parent: node.parent, healed: node.healed, pieces, label, kept: true, length: pieces.length, end: "a token of your choice" };
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

  go(id, shown = [id]) {
    if (id === this.current && shown.join() === this.shown.join()) return;
    this.history.push({ go: this.current, shown: this.shown });
    this.current = id;
    this.shown = shown;
  }

  discard(id) {
    this.history.push({ discarded: id });
    this.nodes.get(id).discarded = true;
  }

  // Takes back the last `go` or `discard`; returns the node that came back, if one did.
  undo() {
    const last = this.history.pop();
    if (!last) return null;
    if (last.discarded) {
      const node = this.nodes.get(last.discarded);
      node.discarded = false;
      return node;
    }
    this.current = last.go;
    this.shown = last.shown;
    return null;
  }
}
