// @ts-check
// The text, in a box as high as its content. Only this module writes to the box. To show another text, go to another
// place (drafts.js) or undo typing; so no feature can overwrite what was typed.

import { find } from "../lib/dom.js";
import { applyEdit, applyEdits, packMarks, PASTED, spread, unpackMarks } from "../story/authorship.js";
import { Drafts } from "../story/drafts.js";
import { change, difference } from "../story/edits.js";
import { ROOT } from "../story/tree.js";
import { Mirror } from "./mirror.js";

const PASTES = ["insertFromPaste", "insertFromPasteAsQuotation", "insertFromDrop", "insertFromYank"]; // types of inputs
const isTouched = matchMedia("(hover: none)"); // on a phone, the keyboard covers the page

export class Manuscript {
  drafts = new Drafts();
  marks = ""; // who wrote each character
  #known = ""; // the text that the marks belong to
  #copied = { text: "", marks: "" };
  #composed = /** @type {{ place: string, text: string, marks: string } | null} */ (null); // before what a dead key or an input method is composing
  // Called after each change: {place, at, removed, added, marks, by}. `marks` say who wrote what was removed, and `by`,
  // one mark or several, who wrote what was added, if not the writer.
  /** @param {{ place: string, at: number, removed: string, added: string, marks: string, by?: string }} _change */
  step = (_change) => {};

  /** @param {HTMLElement} element */
  constructor(element) {
    this.box = /** @type {HTMLTextAreaElement} */ (element.querySelector("textarea"));
    this.mirror = new Mirror(find(".mirror", element));
    this.box.addEventListener("input", (event) => this.#type(PASTES.includes(/** @type {InputEvent} */ (event).inputType) ? PASTED : undefined));
    this.box.addEventListener("compositionstart", () => {
      this.#composed = { place: this.drafts.place ?? ROOT, text: this.value, marks: this.marks };
    });
    for (const name of ["copy", "cut", "dragstart"]) this.box.addEventListener(name, () => this.#copy());
    this.box.addEventListener("compositionend", () => this.endComposing());
  }

  get value() {
    return this.box.value;
  }

  /** The text, and who wrote it. */
  get content() {
    return { text: this.value, marks: this.marks };
  }

  /**
   * The cursor or the selection, as [from, to].
   * @returns {[from: number, to: number]}
   */
  get selection() {
    return [this.box.selectionStart, this.box.selectionEnd];
  }

  /**
   * Show a place: its draft, or else its text in the tree. Text in the box that isn't in the tree stays a draft.
   * @param {string} place
   * @param {{ text: string, marks: string, behind?: number }} content `behind` counts the characters after the cursor
   */
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

  /**
   * Scroll to a place.
   * @param {number} at
   * @param {ScrollLogicalPosition} block
   */
  reveal(at, block) {
    this.mirror.reveal(at, block);
  }

  /**
   * The rectangle of a word on the screen.
   * @param {number} from
   * @param {number} to
   */
  place(from, to) {
    return this.mirror.place(from, to);
  }

  /**
   * Shade a word and scroll to it. Resolves when the scrolling is done.
   * @param {number} from
   * @param {number} to
   */
  async bring(from, to) {
    this.shade(from, to);
    const { top, bottom } = this.place(from, to);
    if (top < 0 || bottom > innerHeight) scrollBy(0, (top + bottom - innerHeight) / 2); // its paragraph is higher than the window
    await new Promise(requestAnimationFrame);
  }

  /**
   * Shade new text until the next key.
   * @param {number} from
   * @param {number} to
   */
  shade(from, to) {
    this.mirror.shade(from, to);
  }

  /**
   * Replace the text, as if it had been typed.
   * @param {string} text
   * @param {string} [by] a mark of authorship.js
   */
  type(text, by) {
    this.box.value = text;
    this.#type(by);
  }

  /**
   * Insert text by somebody else at the cursor.
   * @param {string} text
   * @param {string} [by] a mark of authorship.js, if not the writer
   */
  insert(text, by) {
    const [, at] = this.selection;
    this.box.setRangeText(text, at, at, "end");
    this.#type(by);
    this.shade(at, at + text.length);
    this.box.dispatchEvent(new Event("input", { bubbles: true })); // for other listeners
  }

  /**
   * Make changes at once, for which the caller has a step. Returns false if the text isn't as they expect it.
   * @param {import("../story/edits.js").Change[]} changes ascending, with the marks of what is added, if they are known
   * @returns {boolean}
   */
  edit(changes) {
    const { value } = this;
    if (!changes.every(({ at, removed }) => value.startsWith(removed, at))) return false;
    const [{ at: start }] = changes;
    const parts = [];
    let done = start;
    for (const { at, removed, added } of changes) {
      parts.push(value.slice(done, at), added);
      done = at + removed.length;
    }
    this.marks = applyEdits(this.marks, changes);
    this.box.setRangeText(parts.join(""), start, done, "end");
    this.#keep();
    this.#draw();
    return true;
  }

  /**
   * Show what another tab or device has made of this text. The cursor stays between the same characters.
   * @param {string} text
   * @param {string} marks
   */
  follow(text, marks) {
    const { at, removed, added } = difference(this.value, text);
    this.box.setRangeText(added, at, at + removed.length, "preserve");
    this.marks = marks;
    this.#draw();
  }

  /**
   * Select a passage, shade it and scroll to it.
   * @param {number} from
   * @param {number} to
   */
  async select(from, to) {
    this.box.setSelectionRange(from, to);
    const line = this.value.slice(from, to).indexOf("\n");
    await this.bring(from, line < 0 ? to : from + line);
    this.shade(from, to);
  }

  #type(source) {
    const step = change(this.#known, this.value, this.selection[1]);
    const { at, removed, added } = step;
    if (!removed && !added) return;
    const by = source === PASTED && added === this.#copied.text ? this.#copied.marks : source;
    const marks = this.marks.slice(at, at + removed.length);
    this.marks = applyEdit(this.marks, step, spread(by, added.length));
    this.#keep();
    this.#draw();
    if (!this.#composed) this.step({ place: this.drafts.place ?? ROOT, ...step, marks, by });
  }

  /** Report what a dead key or an input method has composed so far, as one change. */
  endComposing() {
    if (!this.#composed) return;
    const { place, text, marks } = this.#composed;
    this.#composed = null;
    const { at, removed, added } = change(text, this.value, this.selection[1]);
    if (removed || added) this.step({ place, at, removed, added, marks: marks.slice(at, at + removed.length) });
  }

  /** Remember who wrote what is copied, for when it's pasted. */
  #copy() {
    const [from, to] = this.selection;
    this.#copied = { text: this.value.slice(from, to), marks: this.marks.slice(from, to) };
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

  /**
   * Focus the box, at the last cursor.
   * @param {FocusOptions} [options]
   */
  focus(options) {
    this.box.focus(options);
  }

  /** Return to writing after something else was done on the page. */
  resume() {
    if (!this.#hasKeyboard && !isTouched.matches) this.focus({ preventScroll: true });
  }
}

/** Where to put the cursor in a draft of a place with these texts before and after it. */
function cursorOf(draft, before, behind) {
  if (behind && draft.endsWith(behind)) return draft.length - behind.length;
  return behind && draft.startsWith(before) ? before.length : draft.length;
}
