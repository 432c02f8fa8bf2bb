// @ts-check
// The cards, one for each alternative in sight. A card appends new text, and never redraws the text it has.

import { arrange, create, find, findAll, isFocusLost } from "../lib/dom.js";
import { copy } from "../lib/files.js";
import { plural, safely, showStatus } from "../lib/messages.js";
import { LOST } from "../story/generation.js";
import { textOf } from "../story/tree.js";
import { describeFit } from "./bridge.js";
import { areShaded } from "./token_preview.js";

/** @typedef {import("../story/tree.js").StoryNode} StoryNode */

const DOUBTS = [0.5, 0.2, 0.05]; // the shade is stronger below each of these probabilities

// Between two updates. Each update lays out and paints all cards, and words in small groups are easier to read.
const PAUSE_MILLISECONDS = 250;

export class Card {
  constructor(/** @type {StoryNode} */ node, /** @type {ReturnType<typeof actionsOf>} */ actions) {
    this.node = node;
    this.element = find("#card").content.firstElementChild.cloneNode(true);
    this.element.dataset.node = node.id;
    const part = (name) => find(`.${name}`, this.element);
    this.text = part("text");
    this.about = part("about");
    this.facts = part("facts");
    this.numbers = part("numbers");
    this.title = part("title");
    this.follows = part("follows");
    this.stem = part("stem-text");
    this.buttons = Object.fromEntries(findAll("button", this.element).map((button) => [button.value, button]));
    for (const [name, button] of Object.entries(this.buttons)) button.addEventListener("click", () => actions[name](node));
    this.name(node.label);
  }

  /** Set the title next to the number. Of a blind one, nothing may tell the settings: seeds are in their order. */
  name(/** @type {string | undefined} */ label, isBlind = false) {
    this.isBlind = isBlind;
    this.numbers.hidden = isBlind;
    this.shownLabel = label;
    const name = label ?? `Alternative ${(this.node.order ?? 0) + 1}`;
    this.title.textContent = label ?? "";
    this.title.setAttribute("aria-label", name);
    this.text.setAttribute("aria-label", `Text of ${name}`);
    for (const button of Object.values(this.buttons)) button.setAttribute("aria-description", name); // eight are called Keep
  }

  begin(/** @type {string} */ text) {
    this.stem.textContent = text;
    this.stem.hidden = !text;
  }

  /** Show the current text and facts. `follow` is how many nodes continue this one. */
  update(/** @type {boolean} */ isRunning, /** @type {number} */ follow) {
    const { buttons, element, text } = this;
    const { pieces, name } = this.node;
    if (text.childElementCount > pieces.length) this.clear();
    for (let k = text.childElementCount; k < pieces.length; k++) text.append(this.#draw(pieces[k], k));
    this.#setFacts(isRunning, follow);
    buttons.favourite.ariaPressed = String(Boolean(name));
    element.classList.toggle("favourite", Boolean(name));
    if (element.classList.contains("running") === isRunning) return;
    const hadKeyboard = element.contains(document.activeElement);
    element.classList.toggle("running", isRunning);
    buttons.stop.hidden = !isRunning;
    buttons.continue.hidden = isRunning;
    for (const each of [buttons.keep, buttons.more, buttons.discard]) each.disabled = isRunning;
    if (hadKeyboard && isFocusLost()) text.focus({ preventScroll: true });
  }

  /** Have the next update redraw all of the text. */
  clear() {
    this.text.classList.remove("paragraph");
    this.text.replaceChildren();
  }

  /** Hide the space at the beginning of a text. A paragraph that begins there is indented. */
  #draw(piece, k) {
    const first = this.node.pieces.findIndex(({ text }) => text.trim());
    const space = first < 0 || k <= first ? piece.text.match(/^\s*/)[0] : "";
    if (space.includes("\n")) this.text.classList.add("paragraph");
    return tokenElement(piece, k, space);
  }

  #setFacts(isRunning, follow) {
    const { length = 0, milliseconds = 0, end, seed } = this.node;
    const numbers = [plural(length, "token")];
    if (milliseconds > 0 && length > 1) numbers.push(`${(((length - 1) * 1000) / milliseconds).toFixed(1)}/s`);
    if (seed !== undefined) numbers.push(`seed ${seed}`);
    this.numbers.textContent = numbers.join(" · ");
    const facts = !isRunning && end !== "" ? [end ?? "cut off"] : [];
    if (follow) facts.push(plural(follow, "continuation"));
    this.facts.textContent = facts.join(" · ");
    this.about.classList.toggle("trouble", !isRunning && isTrouble(this.node));
  }
}

const isTrouble = (/** @type {StoryNode} */ { end, reason }) => end === undefined || end === LOST || ["abort", "error"].includes(reason?.finish_reason ?? "");

function tokenElement({ text, ...piece }, k, space) {
  const lead = space ? [create("span", { className: "lead" }, space)] : [];
  const token = create("span", {}, ...lead, text.slice(space.length));
  if (piece.p === undefined || !text) return token;
  if (piece.top) Object.assign(token, { tabIndex: -1 }).dataset.k = k; // imported trees have none
  const doubt = DOUBTS.filter((p) => piece.p < p).length;
  if (doubt) token.className = `doubt-${doubt}`;
  return token;
}

const actionsOf = (/** @type {import("./desk.js").Desk} */ desk) => ({
  keep: (node) => {
    showStatus(desk.cards.describeKept(node));
    desk.keep(node); // which may say that what was typed is a draft
  },
  favourite: (node) => desk.snapshots.toggle(node),
  more: safely((node) => desk.writing.like(node)),
  stop: safely((node) => desk.writing.stop(node)),
  continue: safely((node) => desk.writing.continue(node)),
  copy: safely(async (node) => {
    await copy(textOf(node));
    showStatus("Copied.");
  }),
  discard: (node) => {
    desk.discard(node);
    if (isFocusLost()) find("#undo").focus();
    showStatus("Discarded. Press Undo to bring it back.");
  },
});

export class Cards {
  element = find("#cards");
  cards = /** @type {Map<string, Card>} */ (new Map());
  grids = new Map(); // by batch: its title, if it has one, and its grid
  changed = new Set();
  flushed = 0;

  /** @param {import("./desk.js").Desk} desk */
  constructor(desk) {
    this.desk = desk;
    this.actions = actionsOf(desk);
  }

  /** Show the alternatives of the tree's shown nodes, each batch in its own grid, the newest first. */
  show() {
    const { tree } = this.desk;
    const nodes = tree.shown.flatMap((id) => tree.alternatives(id));
    const batches = [...Map.groupBy(nodes, (node) => node.batch)].sort(([a = 0], [b = 0]) => b - a);
    const shown = { cards: new Map(), grids: new Map() };
    let last = 0; // the number of a batch's last card
    for (const [id, batch] of batches) {
      const grid = this.grids.get(id)?.at(-1) ?? create("ol", {});
      const labels = new Set(batch.map((node) => node.label)); // compared columns have labels
      const areLed = batch.some((node) => node.settings?.direction); // their labels are directions
      const isCompared = labels.size > 1 && !labels.has(undefined) && !areLed;
      const isBlind = isCompared && this.desk.settings.options.blind.checked && !batch.some((node) => node.kept);
      grid.className = isBlind ? "batch blind" : isCompared ? "batch columns" : "batch";
      const variables = { "--columns": labels.size, "--count": batch.length, "--last": (last += batch.length) };
      for (const [name, value] of Object.entries(variables)) grid.style.setProperty(name, value);
      for (const node of batch) shown.cards.set(node.id, this.cards.get(node.id) ?? new Card(node, this.actions));
      const title = labels.size === 1 && batch.length > 1 && batch[0].label; // once, not on each card
      batch.sort((a, b) => (isBlind ? shuffled(a.id) - shuffled(b.id) : 0) || (a.order ?? 0) - (b.order ?? 0));
      batch.forEach((node, k) => shown.cards.get(node.id).name(isBlind ? letter(k) : title ? undefined : node.label, isBlind));
      grid.ariaLabel = title || null;
      const head = title ? [create("p", { className: "batch-title", textContent: title, style: { "--count": batch.length } })] : [];
      shown.grids.set(id, [...head, grid]);
      arrange(grid, batch.map((node) => shown.cards.get(node.id).element));
    }
    Object.assign(this, shown);
    arrange(this.element, [...this.grids.values()].flat());
    for (const node of nodes) this.update(node);
    if (areShaded()) this.desk.probabilities.all(nodes);
  }

  /** Redraw the text of a node whose pieces were replaced, if it is in sight. */
  redraw(/** @type {StoryNode} */ node) {
    this.cards.get(node.id)?.clear();
    this.update(node);
  }

  change(/** @type {StoryNode} */ node) {
    if (!this.changed.size) {
      const wait = Math.max(0, this.flushed + PAUSE_MILLISECONDS - performance.now());
      setTimeout(() => requestAnimationFrame(() => this.#flush()), wait);
    }
    this.changed.add(node);
  }

  update(/** @type {StoryNode} */ node) {
    const card = this.cards.get(node.id);
    if (!card) return;
    const isRunning = this.desk.writing.isRunning(node);
    card.begin(this.#stemText(node));
    card.update(isRunning, isRunning ? 0 : this.desk.tree.children(node.id).length);
    if (node.follows !== undefined) this.#compare(node);
  }

  /** The node of the card that has an element. */
  nodeOf(element) {
    return /** @type {StoryNode} */ (this.desk.tree.nodes.get(element.closest("[data-node]").dataset.node));
  }

  /** Say which alternative was kept; of blind ones, also its settings. */
  describeKept(/** @type {StoryNode} */ { id, label }) {
    const shown = this.cards.get(id)?.shownLabel;
    return shown && shown !== label ? `Kept ${shown}: ${label}.` : "Kept.";
  }

  /** The letter of an alternative whose settings aren't shown; undefined for others. */
  letterOf(/** @type {StoryNode} */ { id }) {
    const card = this.cards.get(id);
    return card?.isBlind ? card.shownLabel : undefined;
  }

  #stemText({ parent }) {
    const { tree } = this.desk;
    return parent === tree.current ? "" : tree.text(parent).slice(tree.text(tree.start(parent)).length).trim();
  }

  /** Show how well the text after the cursor fits each alternative of a batch. */
  #compare(/** @type {StoryNode} */ { parent, batch }) {
    const all = this.desk.tree.children(parent).filter((node) => node.batch === batch && node.follows !== undefined);
    const best = Math.max(...all.map((node) => node.follows ?? -Infinity));
    for (const node of all) {
      const card = this.cards.get(node.id);
      if (card) card.follows.textContent = describeFit(node.follows ?? -Infinity, best);
    }
  }

  /** Scroll to the batch of a node. The end of the text stays in sight above it. */
  reveal(/** @type {StoryNode} */ node) {
    this.cards.get(node.id)?.element.parentElement.scrollIntoView({ block: "start" });
  }

  focus(/** @type {StoryNode} */ node) {
    this.cards.get(node.id)?.text.focus();
  }

  #flush() {
    for (const node of this.changed) this.update(node);
    this.changed.clear();
    this.flushed = performance.now();
  }
}

/** A letter in place of settings: A to Z, then AA. */
const letter = (k) => (k < 26 ? "" : letter(Math.floor(k / 26) - 1)) + String.fromCharCode(65 + (k % 26));

/** A number that orders ids at random, and always in the same way (FNV-1a). */
const shuffled = (/** @type {string} */ id) => [...id].reduce((hash, each) => Math.imul(hash ^ each.charCodeAt(0), 0x01000193) >>> 0, 0x811c9dc5);
