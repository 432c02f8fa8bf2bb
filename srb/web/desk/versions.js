// @ts-check
// Where the alternatives in sight belong. For a rewritten passage, the original and its differences.

import { find } from "../lib/dom.js";
import { shorten } from "../story/titles.js";
import { textOf } from "../story/tree.js";

const EDGE = 40; // characters

export class Versions {
  /** @param {import("./desk.js").Desk} desk */
  constructor(desk) {
    this.desk = desk;
    this.button = find("#differences");
    this.button.addEventListener("click", () => {
      this.button.setAttribute("aria-pressed", this.button.ariaPressed !== "true");
      this.mark();
    });
  }

  /** The place of the alternatives in sight, if it isn't the end of the text. */
  get #place() {
    const { tree } = this.desk;
    const id = tree.shown.find((each) => tree.alternatives(each).length && tree.after(each));
    return tree.nodes.get(tree.start(id ?? ""));
  }

  show() {
    const { tree } = this.desk;
    const node = this.#place;
    find("#where").hidden = !node || Boolean(node.passage);
    find("#version").hidden = !node?.passage;
    if (node?.passage) find("#version blockquote").textContent = node.passage;
    else if (node) {
      const words = tree.text(node.id).trim().replace(/\s+/g, " ");
      const before = words.length > EDGE ? `…${words.slice(-EDGE).replace(/^\S*\s+/, "")}` : words;
      find("#where").textContent = `After “${before}”, before “${shorten(tree.after(node.id), EDGE)}”`;
    }
    this.mark();
  }

  /** Highlight the words of the cards that aren't in the original, if the writer wants to see them. */
  mark() {
    if (!globalThis.Highlight) return;
    const { cards } = this.desk;
    const node = this.button.ariaPressed === "true" && this.#place;
    const all = node?.passage ? [...cards.cards.values()].map((card) => card.node) : [];
    const ranges = all.flatMap((each) => {
      const { text } = cards.cards.get(each.id);
      return changedRanges(node.passage, textOf(each)).map(([from, to]) => within(text, from, to));
    });
    CSS.highlights.set("differs", new Highlight(...ranges));
  }
}

const lengthOf = (node) => node.textContent.length;

/**
 * Return a range of an element's text.
 * @param {Element} element
 * @param {number} from
 * @param {number} to
 */
export function within(element, from, to) {
  const range = new Range();
  const texts = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  range.selectNodeContents(element);
  for (let place = 0; texts.nextNode(); place += lengthOf(texts.currentNode)) {
    const end = place + lengthOf(texts.currentNode);
    if (place <= from && from < end) range.setStart(texts.currentNode, from - place);
    if (place < to && to <= end) range.setEnd(texts.currentNode, to - place);
  }
  return range;
}

const MOST = 4_000_000; // comparisons; beyond that, the whole version counts as changed

const words = (text) => Array.from(text.matchAll(/[\p{L}\p{N}\p{M}'’]+|[^\s\p{L}\p{N}]/gu), ({ 0: word, index }) => ({ word, from: index, to: index + word.length }));

/**
 * Find the words of `after` that aren't in the longest common subsequence of words. Adjacent words are one range.
 * @param {string} before
 * @param {string} after
 * @returns {[from: number, to: number][]}
 */
export function changedRanges(before, after) {
  const [a, b] = [words(before), words(after)];
  if (a.length * b.length > MOST) return after ? [[0, after.length]] : [];
  const lengths = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--)
    for (let k = b.length - 1; k >= 0; k--)
      lengths[i][k] = a[i].word === b[k].word ? lengths[i + 1][k + 1] + 1 : Math.max(lengths[i + 1][k], lengths[i][k + 1]);
  const others = [];
  for (let i = 0, k = 0; k < b.length; ) {
    if (i < a.length && a[i].word === b[k].word) [i, k] = [i + 1, k + 1];
    else if (i < a.length && lengths[i + 1][k] >= lengths[i][k + 1]) i++;
    else {
      const last = others.at(-1);
      if (last && !after.slice(last[1], b[k].from).trim()) last[1] = b[k].to;
      else others.push([b[k].from, b[k].to]);
      k++;
    }
  }
  return others;
}
