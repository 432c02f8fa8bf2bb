// The text so far, in a box as high as it is. A copy behind it gives the height, and shades what is new. Only this draws the box.
// Whoever wants another text in the box goes to another place (drafts.js). So no feature can write over what was typed.

import { Drafts } from "./drafts.js";

const isTouched = matchMedia("(hover: none)"); // a phone, whose keyboard covers the page

export class Manuscript {
  drafts = new Drafts();

  constructor(element) {
    this.box = element.querySelector("textarea");
    [this.known, this.fresh] = element.querySelectorAll(".behind > *");
    this.box.addEventListener("input", () => this.#type());
  }

  get value() {
    return this.box.value;
  }

  // Shows a place: what was typed there, or else its text in the tree. What is in the box and not in the tree stays a draft.
  show(place, text) {
    const before = this.value;
    this.drafts.type(before);
    const now = this.drafts.go(place, text);
    if (now === before) return;
    this.box.value = now;
    if (this.#hasKeyboard) this.#goToEnd();
    const isLonger = before && now.startsWith(before);
    this.#draw(isLonger ? before.length : now.length);
    if (isLonger) this.fresh.scrollIntoView({ block: "nearest" });
  }

  // As if this had been typed.
  type(text) {
    this.box.value = text;
    this.#type();
  }

  #type() {
    this.drafts.type(this.value);
    this.#draw(this.value.length);
  }

  get #hasKeyboard() {
    return document.activeElement === this.box;
  }

  // Takes the keyboard, at the end of the text.
  focus(options) {
    this.box.focus(options);
    this.#goToEnd();
  }

  // Goes on being written, after something else was done on the page.
  resume() {
    if (!this.#hasKeyboard && !isTouched.matches) this.focus({ preventScroll: true });
  }

  #goToEnd() {
    this.box.setSelectionRange(this.value.length, this.value.length);
  }

  #draw(from) {
    this.known.textContent = this.value.slice(0, from);
    this.fresh.textContent = this.value.slice(from);
  }
}
