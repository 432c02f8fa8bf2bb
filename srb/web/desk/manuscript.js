// @ts-check
// The text so far, in a box as high as it is. Only this draws the box. Whoever wants another text in it goes to another place
// (drafts.js), or undoes what was typed. So no feature can write over what was typed.

import { applyEdit, packMarks, unpackMarks } from "../story/authorship.js";
import { Drafts } from "../story/drafts.js";
import { change } from "../story/edits.js";
import { Mirror } from "./mirror.js";

const isTouched = matchMedia("(hover: none)"); // a phone, whose keyboard covers the page

export class Manuscript {
  drafts = new Drafts();
  marks = ""; // who wrote each letter
  #known = ""; // the text that they are the marks of
  // step(change) when the text was changed: {at, removed, added, marks, by}, where `marks` are those of what was removed, and `by` says
  // who wrote what was added, if that isn't the writer.
  /** @param {object} _change */
  step = (_change) => {};

  constructor(element) {
    this.box = element.querySelector("textarea");
    this.mirror = new Mirror(element.querySelector(".mirror"));
    this.box.addEventListener("input", () => this.#type());
  }

  get value() {
    return this.box.value;
  }

  // Where the cursor is, or what is selected: [from, to].
  get selection() {
    return [this.box.selectionStart, this.box.selectionEnd];
  }

  // Shows a place: what was typed there, or else its text in the tree, of which so many letters stand behind the cursor. What is
  // in the box and not in the tree stays a draft.
  show(place, { text, marks, behind = 0 }) {
    this.#keep();
    const before = this.value;
    const now = this.drafts.go(place, text);
    this.marks = now === text ? marks : unpackMarks(this.drafts.marks(place), now.length);
    if (now !== before) {
      this.box.value = now;
      this.goTo(cursorOf(now, text.slice(0, text.length - behind), text.slice(text.length - behind)));
    }
    this.#draw();
  }

  goTo(cursor) {
    this.box.setSelectionRange(cursor, cursor);
  }

  // Has a place in sight; block: where, as scrollIntoView takes it.
  reveal(at, block) {
    this.mirror.reveal(at, block);
  }

  // Where on the screen a word stands.
  place(from, to) {
    return this.mirror.place(from, to);
  }

  // Shades a word, and has it in sight by the end: what scrolling does to others is done then, too.
  async bring(from, to) {
    this.shade(from, to);
    const { top, bottom } = this.place(from, to);
    if (top < 0 || bottom > innerHeight) scrollBy(0, (top + bottom - innerHeight) / 2); // its paragraph is higher than the window
    await new Promise(requestAnimationFrame);
  }

  // Shades what is new, until something is typed.
  shade(from, to) {
    this.mirror.shade(from, to);
  }

  // As if this had been typed.
  type(text) {
    this.box.value = text;
    this.#type();
  }

  // Puts a text at the cursor that somebody else wrote: a mark of marks.js.
  insert(text, by) {
    const [, at] = this.selection;
    this.box.setRangeText(text, at, at, "end");
    this.#type(by);
    this.shade(at, at + text.length);
    this.box.dispatchEvent(new Event("input", { bubbles: true })); // for whoever else looks at what is typed
  }

  // Takes a change back, or makes it again. Returns whether the text is as it was then.
  replace({ at, removed, added, marks }) {
    const end = at + removed.length;
    if (this.value.slice(at, end) !== removed) return false;
    this.marks = applyEdit(this.marks, { at, removed, added }, marks);
    this.box.setRangeText(added, at, end, "end");
    this.#keep();
    this.#draw();
    return true;
  }

  #type(by) {
    const step = change(this.#known, this.value, this.selection[1]);
    const { at, removed, added } = step;
    if (!removed && !added) return;
    const marks = this.marks.slice(at, at + removed.length);
    this.marks = applyEdit(this.marks, step, by?.repeat(added.length));
    this.#keep();
    this.#draw();
    this.step({ ...step, marks, by });
  }

  #keep() {
    this.drafts.type(this.value, () => packMarks(this.marks));
  }

  #draw() {
    this.#known = this.value;
    this.mirror.draw(this.value, this.marks);
  }

  get #hasKeyboard() {
    return document.activeElement === this.box;
  }

  // Takes the keyboard, where the cursor was.
  focus(options) {
    this.box.focus(options);
  }

  // Goes on being written, after something else was done on the page.
  resume() {
    if (!this.#hasKeyboard && !isTouched.matches) this.focus({ preventScroll: true });
  }
}

// Where the cursor belongs in a draft of a place which has `before` and `behind` in the tree.
function cursorOf(draft, before, behind) {
  if (behind && draft.endsWith(behind)) return draft.length - behind.length;
  return behind && draft.startsWith(before) ? before.length : draft.length;
}
