// @ts-check
// The chapters of a text, and the list of them.

import { create } from "../lib/dom.js";
import { words } from "../lib/length.js";
import { plural } from "../lib/messages.js";

const REST = 400; // milliseconds after the last key

/**
 * Find the chapters of a text. A line such as "# The boat" or "## The boat" starts one.
 * @param {string} text
 * @returns {{ title: string, at: number, words: number }[]} `at` is the end of the heading
 */
export function chapters(text) {
  const heads = [...text.matchAll(/^##? +(\S.*)$/gm)];
  return heads.map((head, k) => {
    const at = head.index + head[0].length;
    return { title: head[1].trim(), at, words: words(text.slice(at, heads[k + 1]?.index)) };
  });
}

export class Chapters {
  resting = 0; // a timer

  /**
   * @param {HTMLElement} list
   * @param {import("./manuscript.js").Manuscript} story
   * @param {() => void} left called before the writer goes to a chapter
   */
  constructor(list, story, left) {
    this.list = list;
    this.story = story;
    this.left = left;
    story.box.addEventListener("input", () => {
      clearTimeout(this.resting);
      this.resting = setTimeout(() => this.draw(), REST);
    });
  }

  /** Draw the list, if it is visible. */
  draw() {
    if (!this.list.parentElement?.checkVisibility()) return; // an empty list is never visible
    this.list.replaceChildren(...chapters(this.story.value).map((each) => this.#row(each)));
  }

  #row({ title, at, words: count }) {
    const button = create("button", { type: "button" }, `${title} `, create("small", { textContent: plural(count, "word") }));
    button.addEventListener("click", () => {
      this.left();
      this.story.goTo(at);
      this.story.reveal(at, "start");
      this.story.resume();
    });
    return create("li", {}, button);
  }
}
