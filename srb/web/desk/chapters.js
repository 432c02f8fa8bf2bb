// @ts-check
// The chapters of a text, by its headings: a list to go to them.

import { create } from "../lib/dom.js";
import { words } from "../lib/length.js";
import { plural } from "../lib/messages.js";

const REST = 400; // milliseconds without a key, until they are looked for

// A chapter begins with a line as "# The boat". {title, at, words}, where `at` is behind its heading. Pure.
export function chapters(text) {
  const heads = [...text.matchAll(/^# +(\S.*)$/gm)];
  return heads.map((head, k) => {
    const at = head.index + head[0].length;
    return { title: head[1].trim(), at, words: words(text.slice(at, heads[k + 1]?.index)) };
  });
}

export class Chapters {
  // left() when one goes to a chapter, before that.
  constructor(list, story, left) {
    this.list = list;
    this.story = story;
    this.left = left;
    story.box.addEventListener("input", () => {
      clearTimeout(this.resting);
      this.resting = setTimeout(() => this.draw(), REST);
    });
  }

  // Draws them, if they can be seen.
  draw() {
    if (!this.list.parentElement.checkVisibility()) return; // an empty list never can
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
