// @ts-check
// Where the alternatives in sight belong. For a rewritten passage, the original and its differences.

import { find } from "../lib/dom.js";
import { changedParts } from "../story/text_merge.js";
import { shorten } from "../story/titles.js";
import { textOf } from "../story/tree.js";

const EDGE = 40; // characters

/** Return the end of a text, as a line of whole words. */
export function lastWords(text, length) {
  const words = text.trim().replace(/\s+/g, " ");
  return words.length > length ? `…${words.slice(-length).replace(/^\S*\s+/, "")}` : words;
}

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
      find("#where").textContent = `After “${lastWords(tree.text(node.id), EDGE)}”, before “${shorten(tree.after(node.id), EDGE)}”`;
    }
    this.mark();
  }

  /** Highlight the words of the cards that aren't in the original, if the writer wants to see them. */
  mark() {
    if (!globalThis.Highlight) return;
    const { cards } = this.desk;
    const node = this.button.ariaPressed === "true" && this.#place;
    const all = node?.passage ? [...cards.cards.values()] : [];
    const ranges = all.flatMap((card) => {
      const added = changedParts(node.passage, textOf(card.node)).filter(({ at, end }) => at < end);
      return added.map(({ at, end }) => within(card.text, at, end));
    });
    CSS.highlights.set("differs", new Highlight(...ranges));
  }
}

const lengthOf = (node) => node.textContent.length;

export function within(/** @type {Element} */ element, /** @type {number} */ from, /** @type {number} */ to) {
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
