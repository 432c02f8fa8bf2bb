// @ts-check
// The chapters of a text, and the list of them.

import { create, find } from "../lib/dom.js";
import { words } from "../lib/length.js";
import { plural } from "../lib/messages.js";

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
  list = find("#chapters");

  /** @param {import("./manuscript.js").Manuscript} story */
  constructor(story) {
    this.story = story;
  }

  draw() {
    if (!this.list.parentElement?.checkVisibility()) return; // an empty list is never visible
    this.list.replaceChildren(...chapters(this.story.value).map((each) => this.#row(each)));
  }

  #row({ title, at, words: count }) {
    const onclick = () => {
      find("#stories:modal")?.close(); // it would cover the chapter
      this.story.goTo(at);
      this.story.reveal(at, "start");
      this.story.resume();
    };
    const length = create("small", { textContent: plural(count, "word") });
    return create("li", {}, create("button", { type: "button", onclick }, `${title} `, length));
  }
}
