// A copy of the text behind its box: it gives the height, and has the tints, which a box can't have. It has an element for each
// line, so that a key costs the browser one line and not all of a book.

import { CHANGED, MODEL, runs, WRITER } from "./marks.js";

const TINTS = { [WRITER]: "writer", [MODEL]: "model", [CHANGED]: "changed" };

// The browser's highlight of a name; without the API there are no tints.
function highlight(name) {
  if (!globalThis.Highlight) return new Set();
  if (!CSS.highlights.has(name)) CSS.highlights.set(name, new Highlight());
  return CSS.highlights.get(name);
}

function range(node, from, to) {
  const made = new Range();
  made.setStart(node, from);
  made.setEnd(node, to);
  return made;
}

export class Mirror {
  #lines = []; // {text, marks, element, tints}, where tints are [tint, range]
  #tints = Object.fromEntries(Object.entries(TINTS).map(([mark, name]) => [mark, highlight(name)]));
  #shade = highlight("fresh");

  constructor(element) {
    this.element = element;
  }

  // Draws the lines that are others than before.
  draw(text, marks) {
    let place = 0;
    const lines = text.split("\n").map((line) => {
      const from = place;
      place += line.length + 1;
      return { text: line, marks: marks.slice(from, from + line.length) };
    });
    const old = this.#lines;
    const isSame = (a, b) => a.text === b.text && a.marks === b.marks;
    const most = Math.min(lines.length, old.length);
    let [first, last] = [0, 0];
    while (first < most && isSame(lines[first], old[first])) first++;
    while (last < most - first && isSame(lines.at(-1 - last), old.at(-1 - last))) last++;
    const next = old[old.length - last]?.element ?? null;
    for (const line of old.slice(first, old.length - last)) this.#remove(line);
    const made = lines.slice(first, lines.length - last).map((line) => this.#make(line));
    for (const { element } of made) this.element.insertBefore(element, next);
    this.#lines = [...old.slice(0, first), ...made, ...old.slice(old.length - last)];
    if (first < lines.length - last || lines.length !== old.length) this.#shade.clear();
  }

  #make({ text, marks }) {
    const element = document.createElement("div");
    element.append(text || document.createElement("br"));
    const tints = runs(marks).map(([mark, from, to]) => [this.#tints[mark], range(element.firstChild, from, to)]);
    for (const [tint, each] of tints) tint.add(each);
    return { text, marks, element, tints };
  }

  #remove({ element, tints }) {
    for (const [tint, each] of tints) tint.delete(each);
    element.remove();
  }

  // Shades what stands from one place to another, and has its end in sight.
  shade(from, to) {
    this.#shade.clear();
    let [place, last] = [0, null];
    for (const { text, element } of this.#lines) {
      const [start, end] = [Math.max(from - place, 0), Math.min(to - place, text.length)];
      if (start < end) this.#shade.add(range((last = element).firstChild, start, end));
      place += text.length + 1;
      if (place > to) break;
    }
    last?.scrollIntoView({ block: "nearest" });
  }
}
