// @ts-check
// The cards: one for each alternative in sight. A card appends what has come, and never draws again what it has.

import { find, isFocusLost } from "../lib/dom.js";
import { LOST } from "../story/generation.js";
import { describeFit } from "./bridge.js";
import { areShaded } from "./token_preview.js";

const DOUBTS = [0.5, 0.2, 0.05]; // the shade is stronger below each of these probabilities

// Between two updates: each makes the browser lay out and paint all cards, and words in small groups read calmer.
const PAUSE_MILLISECONDS = 250;

export class Card {
  // actions: functions of the node: keep, more, continue, stop, copy, discard.
  constructor(node, actions) {
    this.node = node;
    this.drawn = 0;
    this.hasBegun = false; // whether there is more than space
    this.element = find("#card").content.firstElementChild.cloneNode(true);
    this.element.dataset.node = node.id;
    const part = (name) => find(`.${name}`, this.element);
    this.text = part("text");
    this.about = part("about");
    this.facts = part("facts");
    this.seed = part("seed");
    this.title = part("title");
    this.follows = part("follows");
    this.stem = part("stem-text");
    this.buttons = new Map();
    for (const button of this.element.querySelectorAll("button")) {
      this.buttons.set(button.value, button);
      button.addEventListener("click", () => actions[button.value](node));
    }
    const label = node.label ?? `Alternative ${node.order + 1}`;
    this.title.textContent = node.label ?? "";
    this.title.setAttribute("aria-label", label);
    this.text.setAttribute("aria-label", `Text of ${label}`);
    this.state = null;
  }

  // Shows the stem of its text, where it has one.
  begin(text) {
    this.stem.textContent = text;
    this.stem.hidden = !text;
  }

  // follow: how many alternatives follow this one.
  update(isRunning, follow) {
    const { pieces } = this.node;
    if (this.drawn > pieces.length) this.clear();
    if (this.drawn < pieces.length) {
      const fragment = document.createDocumentFragment();
      for (; this.drawn < pieces.length; this.drawn++) fragment.append(this.#draw(pieces[this.drawn], this.drawn));
      this.text.append(fragment);
    }
    this.#setFacts(isRunning, follow);
    this.buttons.get("favourite").ariaPressed = String(Boolean(this.node.name));
    this.element.classList.toggle("favourite", Boolean(this.node.name));
    if (this.state === isRunning) return;
    this.state = isRunning;
    const hadKeyboard = this.element.contains(document.activeElement);
    this.element.classList.toggle("running", isRunning);
    this.buttons.get("stop").hidden = !isRunning;
    this.buttons.get("continue").hidden = isRunning;
    for (const name of ["keep", "more", "discard"]) this.buttons.get(name).disabled = isRunning;
    if (hadKeyboard && isFocusLost()) this.text.focus({ preventScroll: true });
  }

  // Has all of the text drawn anew by the next update.
  clear() {
    this.drawn = 0;
    this.hasBegun = false;
    this.text.classList.remove("paragraph");
    this.text.replaceChildren();
  }

  // The space that a text begins with isn't seen: a paragraph that begins there is set in.
  #draw(piece, k) {
    const space = this.hasBegun ? "" : piece.text.match(/^\s*/)[0];
    this.hasBegun ||= space.length < piece.text.length;
    if (space.includes("\n")) this.text.classList.add("paragraph");
    return drawn(piece, k, space);
  }

  #setFacts(isRunning, follow) {
    const { length = 0, milliseconds, end, seed } = this.node;
    if (seed !== undefined && !this.seed.textContent) this.seed.textContent = `seed ${seed}`;
    const facts = [`${length} tokens`];
    if (milliseconds > 0 && length > 1) facts.push(`${(((length - 1) * 1000) / milliseconds).toFixed(1)}/s`);
    if (!isRunning && end !== "") facts.push(end ?? "cut off");
    if (follow) facts.push(follow === 1 ? "1 continuation" : `${follow} continuations`);
    const text = facts.join(" · ");
    if (this.facts.textContent !== text) this.facts.textContent = text;
    this.about.classList.toggle("trouble", !isRunning && isTrouble(this.node));
  }
}

// Whether it ended otherwise than it should have.
const isTrouble = ({ end, reason }) => end === undefined || end === LOST || ["abort", "error"].includes(reason?.finish_reason);

function drawn({ text, ...piece }, k, space) {
  const lead = Object.assign(document.createElement("span"), { className: "lead", textContent: space });
  const parts = [...(space ? [lead] : []), text.slice(space.length)];
  const token = document.createElement("span");
  token.append(...parts);
  if (piece.p === undefined || !text) return token;
  if (piece.top) Object.assign(token, { tabIndex: -1 }).dataset.k = k; // in an imported tree it isn't there
  const doubt = DOUBTS.filter((p) => piece.p < p).length;
  if (doubt) token.className = `doubt-${doubt}`;
  return token;
}

// Draws the cards that are in sight, and what changes on them.
export class Cards {
  constructor(element, desk, writing, actions) {
    this.element = element;
    this.desk = desk;
    this.writing = writing;
    this.actions = actions;
    this.cards = new Map();
    this.grids = new Map();
    this.changed = new Set();
    this.flushed = 0;
  }

  // Shows the alternatives of the tree's shown nodes: each batch in a grid of its own, the newest first.
  show() {
    const { tree } = this.desk;
    const nodes = tree.shown.flatMap((id) => tree.alternatives(id));
    const batches = [...Map.groupBy(nodes, (node) => node.batch)].sort(([a], [b]) => b - a);
    const shown = { cards: new Map(), grids: new Map() };
    for (const [id, batch] of batches) {
      const grid = this.grids.get(id) ?? document.createElement("ol");
      shown.grids.set(id, grid);
      const labels = new Set(batch.map((node) => node.label)); // what is compared has labels
      grid.className = labels.size > 1 && !labels.has(undefined) ? "batch columns" : "batch";
      grid.style.setProperty("--columns", labels.size);
      grid.style.setProperty("--count", batch.length);
      for (const node of batch) shown.cards.set(node.id, this.cards.get(node.id) ?? new Card(node, this.actions));
      batch.sort((a, b) => a.order - b.order);
      arrange(grid, batch.map((node) => shown.cards.get(node.id).element));
    }
    Object.assign(this, shown);
    arrange(this.element, [...this.grids.values()]);
    for (const node of nodes) this.update(node);
    if (areShaded()) this.desk.probabilities.all(nodes);
  }

  // Draws the text of a node anew, whose pieces are others, if it's in sight.
  redraw(node) {
    this.cards.get(node.id)?.clear();
    this.update(node);
  }

  // Marks a node whose card is to be updated with the others that change.
  change(node) {
    if (!this.changed.size) {
      const wait = Math.max(0, this.flushed + PAUSE_MILLISECONDS - performance.now());
      setTimeout(() => requestAnimationFrame(() => this.#flush()), wait);
    }
    this.changed.add(node);
  }

  // Updates the card of a node at once, if it's in sight.
  update(node) {
    const card = this.cards.get(node.id);
    if (!card) return;
    const isRunning = this.writing.isRunning(node);
    card.begin(this.#stemText(node));
    card.update(isRunning, isRunning ? 0 : this.desk.tree.children(node.id).length);
    if (node.follows !== undefined) this.#compare(node);
  }

  #stemText({ parent }) {
    const { tree } = this.desk;
    return parent === tree.current ? "" : tree.text(parent).slice(tree.text(tree.start(parent)).length).trim();
  }

  // Says how well what stands behind follows each of the alternatives that came with this one.
  #compare({ parent, batch }) {
    const all = this.desk.tree.children(parent).filter((node) => node.batch === batch && node.follows !== undefined);
    const best = Math.max(...all.map((node) => node.follows));
    for (const node of all) if (this.cards.has(node.id)) this.cards.get(node.id).follows.textContent = describeFit(node.follows, best);
  }

  // Scrolls to the batch of a node; the end of the text stays in sight above it.
  reveal(node) {
    this.cards.get(node.id)?.element.parentElement.scrollIntoView({ block: "start" });
  }

  // Gives the keyboard to the card of a node.
  focus(node) {
    this.cards.get(node.id)?.text.focus();
  }

  #flush() {
    for (const node of this.changed) this.update(node);
    this.changed.clear();
    this.flushed = performance.now();
  }
}

// Makes these the children of an element. Those that stay in their places stay scrolled, and keep the keyboard.
function arrange(element, children) {
  const staying = new Set(children);
  for (const child of [...element.children]) if (!staying.has(child)) child.remove();
  children.forEach((child, k) => {
    if (element.children[k] !== child) element.insertBefore(child, element.children[k] ?? null);
  });
}
