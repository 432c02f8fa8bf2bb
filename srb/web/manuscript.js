// The text so far, in a box as high as it is. A copy behind it gives the height, and shades what is new.

export class Manuscript {
  constructor(element) {
    this.box = element.querySelector("textarea");
    [this.known, this.fresh] = element.querySelectorAll(".behind > *");
    this.box.addEventListener("input", () => this.#draw(this.value.length));
  }

  get value() {
    return this.box.value;
  }

  // What a text has in addition to the one before is shown as new.
  set value(text) {
    const before = this.value;
    if (text === before) return;
    this.box.value = text;
    const isLonger = before && text.startsWith(before);
    this.#draw(isLonger ? before.length : text.length);
    if (isLonger) this.fresh.scrollIntoView({ block: "nearest" });
  }

  focus() {
    this.box.focus();
    this.box.setSelectionRange(this.value.length, this.value.length);
  }

  #draw(from) {
    this.known.textContent = this.value.slice(0, from);
    this.fresh.textContent = this.value.slice(from);
  }
}
