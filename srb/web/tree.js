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
    this.#index();
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

  // Removes a node for good, unlike `discard`. It has none below it.
  remove(id) {
    const node = this.nodes.get(id);
    if (!node) return; // the whole tree was cleared in the meantime
    this.nodes.delete(id);
    this.#children.set(node.parent, this.#children.get(node.parent).filter((each) => each !== node));
  }

  #index() {
    this.#children.clear();
    for (const node of this.nodes.values()) this.#hang(node);
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

  // The text to a node as Markdown: a story, or a conversation whose questions are quoted.
  markdown(id) {
    const path = this.path(id);
    if (!path.some(isTurn)) return this.text(id);
    return path.map((node) => (isTurn(node) ? said(node).replace(/^/gm, "> ") : said(node).trim())).join("\n\n");
  }

  text(id) {
    return this.path(id).map(textOf).join("");
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
  written(text) {
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

  // Adds what a tree that was `imported` has and this one hasn't, and goes where it was. Returns the nodes that it has.
  // Throws an Error in words, and leaves this tree as it was.
  import(data) {
    const known = new Set([ROOT, ...this.nodes.keys(), ...data.nodes.map((node) => node?.id)]);
    for (const node of data.nodes) check(node, known);
    const before = this.nodes;
    this.nodes = new Map([...data.nodes.map((node) => [node.id, node]), ...before]);
    const loop = this.#findLoop(data.nodes);
    if (loop) {
      this.nodes = before;
      throw new Error(`node ${loop.id} in this file comes before itself`);
    }
    this.#index();
    const nodes = data.nodes.map((node) => this.nodes.get(node.id));
    nodes.forEach((node, k) => (node.discarded &&= data.nodes[k].discarded));
    if (this.has(data.current)) this.go(data.current);
    return nodes;
  }

  // One of these nodes that is above itself, if there is one. Each node is walked over once.
  #findLoop(nodes) {
    const sound = new Set();
    return nodes.find((node) => {
      const path = new Set();
      for (let each = node; each && !sound.has(each.id); each = this.nodes.get(each.parent)) {
        if (path.has(each.id)) return true;
        path.add(each.id);
      }
      for (const id of path) sound.add(id);
      return false;
    });
  }
}

const isChoice = (choice) =>
  Number.isInteger(choice?.id) && typeof choice.text === "string" && typeof choice.p === "number";

function check(node, known) {
  const isPiece = (piece) =>
    typeof piece?.text === "string" &&
    ["number", "undefined"].includes(typeof piece.p) &&
    (piece.ids === null || (Array.isArray(piece.ids) && piece.ids.every(Number.isInteger))) &&
    (piece.top === undefined || (Array.isArray(piece.top) && piece.top.every(isChoice)));
  if (typeof node?.id !== "string" || node.id === ROOT) throw new Error("a node in this file has no id");
  if (!known.has(node.parent)) throw new Error(`node ${node.id} in this file hangs on nothing`);
  if (!Array.isArray(node.pieces) || !node.pieces.every(isPiece)) throw new Error(`node ${node.id} in this file has no text`);
}
