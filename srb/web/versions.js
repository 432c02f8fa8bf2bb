// Where the alternatives in sight come into the text; and where they are versions of a passage, that passage, and what differs.

import { differing } from "./differences.js";
import { shorten } from "./places.js";
import { textOf } from "./tree.js";

const EDGE = 40; // letters of a text's beginning or end

const find = (selector) => document.querySelector(selector);

export class Versions {
  constructor(desk) {
    this.desk = desk;
    this.button = find("#differences");
    this.button.addEventListener("click", () => {
      this.button.setAttribute("aria-pressed", this.button.ariaPressed !== "true");
      this.mark();
    });
  }

  // The place of the alternatives in sight, if it isn't the end of the text.
  get #place() {
    const { tree } = this.desk;
    const id = tree.shown.find((each) => tree.alternatives(each).length && tree.after(each));
    return tree.nodes.get(tree.start(id));
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
      find("#where").textContent = `Behind “${before}”, before “${shorten(tree.after(node.id), EDGE)}”`;
    }
    this.mark();
  }

  // Marks the words of the cards that aren't in the passage, if that is wanted.
  mark() {
    if (!globalThis.Highlight) return;
    const { cards, tree } = this.desk;
    const node = this.button.ariaPressed === "true" && this.#place;
    const all = node?.passage ? [...cards.cards.values()].map((card) => card.node) : [];
    const ranges = all.flatMap((each) => {
      const { text } = cards.cards.get(each.id);
      return differing(node.passage, textOf(each)).map(([from, to]) => within(text, from, to));
    });
    CSS.highlights.set("differs", new Highlight(...ranges));
  }
}

// A range of an element's text.
function within(element, from, to) {
  const range = new Range();
  const texts = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  range.selectNodeContents(element);
  for (let place = 0; texts.nextNode(); place += texts.currentNode.length) {
    const end = place + texts.currentNode.length;
    if (place <= from && from < end) range.setStart(texts.currentNode, from - place);
    if (place < to && to <= end) range.setEnd(texts.currentNode, to - place);
  }
  return range;
}
