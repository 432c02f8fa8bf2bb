// @ts-check
// A copy of the text under its box: it gives the height, and has the tints, which a box can't have. Each line has an
// element, so that a key costs the layout of one line. Only lines in sight have tints, because each tint costs time
// at each key.

import { CHANGED, MODEL, PASTED, runs, WRITER } from "../story/authorship.js";

const TINTS = { [WRITER]: "writer", [PASTED]: "writer", [MODEL]: "model", [CHANGED]: "changed" };

const MARGIN = "400px"; // around the visible part

/** Return the browser's highlight of this name, or an empty set in a browser without the API. */
function highlight(name) {
  if (!globalThis.Highlight) return /** @type {any} */ (new Set());
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
  #lines = []; // {text, marks, element, tints}; tints are [tint, range] while it is visible
  #byElement = new WeakMap();
  #sight = new IntersectionObserver((all) => all.forEach((each) => this.#see(each)), { rootMargin: MARGIN });
  #tints = Object.fromEntries(Object.entries(TINTS).map(([mark, name]) => [mark, highlight(name)]));
  #shade = highlight("fresh");

  /** @param {HTMLElement} element */
  constructor(element) {
    this.element = element;
    this.#shade.priority = 1; // above the tints
  }

  /**
   * Draw the lines that have changed.
   * @param {string} text
   * @param {string} marks
   */
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
    if (made.length === 1) this.#tint(made[0]); // it is being typed, and visible
    this.#lines = [...old.slice(0, first), ...made, ...old.slice(old.length - last)];
    if (first < lines.length - last || lines.length !== old.length) this.#shade.clear();
  }

  #make({ text, marks }) {
    const element = document.createElement("div");
    element.append(text || document.createElement("br"));
    const line = { text, marks, element, tints: [] };
    this.#byElement.set(element, line);
    this.#sight.observe(element);
    return line;
  }

  #see({ target, isIntersecting }) {
    const line = this.#byElement.get(target);
    if (!isIntersecting) this.#clear(line);
    else if (!line.tints.length && target.isConnected) this.#tint(line);
  }

  #tint(line) {
    line.tints = runs(line.marks).map(([mark, from, to]) => [this.#tints[mark], range(line.element.firstChild, from, to)]);
    for (const [tint, each] of line.tints) tint.add(each);
  }

  #clear(line) {
    for (const [tint, each] of line.tints) tint.delete(each);
    line.tints = [];
  }

  #remove(line) {
    this.#sight.unobserve(line.element);
    this.#clear(line);
    line.element.remove();
  }

  /**
   * Scroll to the line of a place.
   * @param {number} at
   * @param {ScrollLogicalPosition} block
   */
  reveal(at, block) {
    let place = 0;
    const line = this.#lines.find(({ text }) => (place += text.length + 1) > at);
    line?.element.scrollIntoView({ block });
  }

  /**
   * The rectangle of a word on the screen; of its last part, if it wraps.
   * @param {number} from
   * @param {number} to
   */
  place(from, to) {
    let end = 0;
    const line = this.#lines.find(({ text }) => (end += text.length + 1) > from);
    const start = end - line.text.length - 1;
    return /** @type {DOMRect} */ ([...range(line.element.firstChild, from - start, to - start).getClientRects()].at(-1));
  }

  /**
   * Shade a range and scroll to its end.
   * @param {number} from
   * @param {number} to
   */
  shade(from, to) {
    this.#shade.clear();
    let place = 0;
    let last;
    for (const { text, element } of this.#lines) {
      const [start, end] = [Math.max(from - place, 0), Math.min(to - place, text.length)];
      if (start < end) this.#shade.add(range((last = element).firstChild, start, end));
      place += text.length + 1;
      if (place > to) break;
    }
    last?.scrollIntoView({ block: "nearest" });
  }
}
