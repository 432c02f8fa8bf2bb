// The chapters of a text, by its headings: a list to go to them.

import { words } from "./length.js";
import { made } from "./made.js";
import { plural } from "./say.js";

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
    Object.assign(this, { list, story, left });
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
    const button = made("button", { type: "button" }, `${title} `, made("small", { textContent: plural(count, "word") }));
    button.addEventListener("click", () => {
      this.left();
      this.story.goTo(at);
      this.story.reveal(at, "start");
      this.story.resume();
    });
    return made("li", {}, button);
  }
}
