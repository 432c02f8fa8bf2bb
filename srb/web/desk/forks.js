// @ts-check
// The ways back: from a kept alternative to the others, and to an earlier fork, where the model was least sure of the
// next word.

import { create, find, focused, leaveText } from "../lib/dom.js";
import { safely, showStatus } from "../lib/messages.js";
import { shorten } from "../story/titles.js";
import { textOf } from "../story/tree.js";
import { scorePassage } from "./probabilities.js";
import { lastWords } from "./versions.js";

/** @typedef {import("../story/tree.js").StoryNode} StoryNode */
/** @typedef {import("../story/tree.js").Piece} Piece */
/**
 * @typedef {object} Fork a place before a word of the text
 * @property {number} at characters before it
 * @property {number} k the piece that starts there
 * @property {number} width how many tokens were about as likely as each other
 * @property {string} word the word that was taken
 * @property {string[]} others the most probable other tokens
 * @property {string} before the text before it
 */

const FURTHEST = 2000; // characters back
const MOST = 6; // forks to show
const BETWEEN = 24; // characters between two of them
const OTHERS = 4; // words to show of each
const CONTEXT = 48; // characters before it

/**
 * Return the perplexity of a place: how many equally likely tokens are as uncertain. Each of the other tokens counts as
 * probable as the last known one, so the true number is at least this.
 * @param {{ p: number }[]} top the most probable tokens
 */
export function widthOf(top) {
  const known = top.map(({ p }) => p).filter((p) => p > 0);
  const rest = Math.max(0, 1 - known.reduce((sum, p) => sum + p, 0));
  const entropy = known.reduce((sum, p) => sum - p * Math.log(p), 0) - rest * Math.log(Math.min(...known));
  return known.length ? Math.exp(entropy) : 1;
}

/** Return the forks of pieces after a text: the beginnings of words whose probabilities are known. */
export function forksOf(/** @type {string} */ before, /** @type {Piece[]} */ pieces) {
  const whole = before + pieces.map(({ text }) => text).join("");
  const all = /** @type {Fork[]} */ ([]);
  let at = before.length;
  pieces.forEach(({ text, top }, k) => {
    const isStart = /^\s/.test(text) || /\s$/.test(whole.slice(0, at));
    const others = (top ?? []).map((each) => each.text.trim()).filter((each) => each && each !== text.trim());
    if (top && others.length && isStart && /[\p{L}\p{N}]/u.test(text) && whole.slice(0, at).trim()) {
      const word = whole.slice(at).match(/^\s*(\S+)/)?.[1] ?? "";
      all.push({ at, k, width: widthOf(top), word, others: others.slice(0, OTHERS), before: whole.slice(0, at) });
    }
    at += text.length;
  });
  return all;
}

/**
 * Return the widest forks, the widest first, with some text between them.
 * @template {Fork} F
 * @param {F[]} forks
 */
export function widest(forks) {
  const chosen = /** @type {F[]} */ ([]);
  for (const fork of forks.toSorted((a, b) => b.width - a.width))
    if (chosen.length < MOST && chosen.every(({ at }) => Math.abs(at - fork.at) >= BETWEEN)) chosen.push(fork);
  return chosen;
}

/** Find the alternative at the end of the path that was chosen among several. */
export const chosenLast = (/** @type {import("../story/tree.js").Tree} */ tree) => {
  const node = tree.nodes.get(tree.current);
  return node && !node.typed && tree.alternatives(node.parent).length > 1 ? node : undefined;
};

export class Forks {
  dialog = find("#earlier-forks");
  back = find("#back");
  earlier = find("#earlier");

  /** @param {import("./desk.js").Desk} desk */
  constructor(desk) {
    this.desk = desk;
    this.back.addEventListener("click", () => this.#goBack());
    this.earlier.addEventListener("click", safely(() => this.#look()));
  }

  /** Show the way back to the alternatives while none are in sight, else the one to earlier forks. */
  draw() {
    const { cards, tree } = this.desk;
    const node = cards.cards.size ? undefined : chosenLast(tree);
    this.back.hidden = !node;
    if (node) this.back.textContent = `Back to the ${tree.alternatives(node.parent).length} alternatives`;
    this.earlier.hidden = !cards.cards.size || Boolean(tree.nodes.get(tree.current)?.passage);
  }

  #goBack() {
    const { cards, tree } = this.desk;
    const node = chosenLast(tree);
    if (!node) return;
    const place = tree.start(node.parent);
    this.desk.go(place, [...new Set([node.parent, place])]);
    cards.reveal(node);
    cards.focus(node);
  }

  /** Show the widest forks of the text before the current place. */
  async #look() {
    const { tree, story } = this.desk;
    const before = { place: tree.current, text: story.value, at: focused() };
    showStatus("Looking for forks …");
    const forks = widest(await this.#find().finally(() => showStatus("")));
    const isElsewhere = tree !== this.desk.tree || before.place !== tree.current || before.text !== story.value || before.at !== focused();
    if (isElsewhere) return; // the writer went on meanwhile
    if (!forks.length) throw new Error("There is no earlier fork: the text before the alternatives has no second word.");
    const most = Math.max(...forks.map(({ width }) => width));
    find("ul", this.dialog).replaceChildren(...forks.map((fork) => this.#item(fork, most)));
    leaveText(this.earlier);
    this.dialog.showModal();
    find("li button", this.dialog).focus();
  }

  #item(fork, most) {
    const or = create("small", {}, `or: ${fork.others.map((each) => shorten(each, CONTEXT)).join(", ")}`);
    const text = create("span", {}, `${lastWords(fork.before, CONTEXT)} `, create("strong", {}, fork.word));
    const onclick = safely(() => {
      this.dialog.close();
      return this.#goOn(fork);
    });
    return create("li", {}, create("button", { type: "button", onclick, style: { "--chance": fork.width / most } }, text, or));
  }

  /** Find the forks of the last part of the text. The probabilities of text that isn't the model's are requested. */
  async #find() {
    const { desk } = this;
    const { tree } = desk;
    const found = /** @type {(Fork & { node: StoryNode })[]} */ ([]);
    let letters = 0;
    for (const node of tree.path(tree.current).reverse()) {
      if (letters >= FURTHEST) break;
      const before = tree.text(node.parent);
      const text = textOf(node);
      const start = node.typed ? startOf(before, text, text.length - (FURTHEST - letters)) : 0;
      if (!node.typed) await desk.probabilities.ask(node);
      const known = before + text.slice(0, start);
      const scored = node.typed && text.slice(start) && known ? await scorePassage(desk, known, text.slice(start), { n: 1, max_tokens: 1 }) : node;
      found.push(...forksOf(known, scored.pieces ?? []).map((fork) => ({ ...fork, node })));
      letters += text.length;
    }
    return found;
  }

  async #goOn({ node, k, before }) {
    const { desk } = this;
    const { tree } = desk;
    if (!node.typed && k) {
      const fork = await desk.add(tree.before(node.id, k));
      desk.keep(fork);
      return desk.writing.generateFrom(fork.id);
    }
    let id = node.parent;
    if (node.typed) {
      const behind = tree.path(tree.current).findLast((each) => each.typed)?.behind ?? "";
      const marks = tree.marks(tree.current);
      id = await desk.write({ before, behind, marks: marks.slice(0, before.length) + marks.slice(marks.length - behind.length) });
    }
    const place = tree.start(id);
    desk.go(place, [...new Set([id, place])]);
    return desk.writing.generateFrom(id);
  }
}

/** Where to start in a typed text: after a word, so that there is text before it. */
function startOf(before, text, from) {
  if (from <= 0 && before.trim()) return 0;
  const next = text.slice(Math.max(0, from)).match(/^\s*\S+/);
  return Math.max(0, from) + (next?.[0].length ?? 0);
}
