// @ts-check
// Combining alternatives: sentences or selected passages of several alternatives are taken to the cursor. They stay
// marked as the model's text.

import { find, findAll, focused } from "../lib/dom.js";
import { sentences } from "../lib/length.js";
import { showStatus } from "../lib/messages.js";
import { shorten } from "../story/titles.js";
import { textOf } from "../story/tree.js";
import { within } from "./versions.js";

const NAME = 24; // characters of a passage in the status line
const MARGIN = 4; // pixels between a selection and its button

const isNarrow = matchMedia("(max-width: 37.5rem)"); // as in cards.css, where the button is at the bottom

/** Find the sentences of a text, without the space around them. */
export const sentencesOf = (/** @type {string} */ text) =>
  Array.from(sentences.segment(text), ({ segment, index }) => /** @type {[number, number]} */ ([
    index + segment.length - segment.trimStart().length, index + segment.trimEnd().length,
  ])).filter(([from, to]) => from < to);

/**
 * Return a passage of a text with the space before it, and without the space after it.
 * @param {string} text
 * @param {number} from
 * @param {number} to
 * @param {string} [before] the text before the text
 */
export function passageOf(text, from, to, before = "") {
  const passage = text.slice(from, to).trim();
  const start = from + text.slice(from, to).indexOf(passage);
  const known = before + text.slice(0, start);
  return known.slice(known.trimEnd().length) + passage;
}

/** Fit a passage that starts with its own space between two texts. */
export function joined(/** @type {string} */ before, /** @type {string} */ passage, /** @type {string} */ behind) {
  const body = passage.trimStart();
  const space = passage.slice(0, passage.length - body.length);
  const hasSpace = !before || (space.includes("\n") ? before.endsWith("\n") : /\s$/.test(before));
  return (hasSpace ? "" : space) + body + (/^[\p{L}\p{N}“‘«(]/u.test(behind) ? " " : "");
}

export class Combine {
  /** The sentences that the keyboard is at. @type {{ text: HTMLElement, first: number, last: number } | null} */
  #at = null;
  /** The selection when its button was pressed: a finger may clear it. @type {{ text: Element, range: Range } | null} */
  #pressed = null;

  button = find("#combine"); // turns the mode on, in which a click takes a sentence
  takeButton = find("#take-passage");
  isOn = false;

  /** @param {import("./desk.js").Desk} desk */
  constructor(desk) {
    this.desk = desk;
    const { element } = desk.cards;
    const take = this.takeButton;
    this.button.addEventListener("click", () => this.#turn(!this.isOn));
    // Before the preview of tokens, which listens to the document.
    for (const name of ["pointermove", "click"]) element.addEventListener(name, (event) => this.#point(event), true);
    element.addEventListener("pointerleave", () => this.#highlight(null));
    element.addEventListener("keydown", (event) => this.#key(event));
    element.addEventListener("focusin", ({ target }) => this.isOn && target.matches(".text:focus-visible") && this.#goTo(target, 0));
    document.addEventListener("selectionchange", () => this.#follow());
    document.addEventListener("scroll", () => this.selection && this.#place(), { capture: true, passive: true });
    take.addEventListener("mousedown", (event) => event.preventDefault()); // keeps the selection
    take.addEventListener("pointerdown", () => (this.#pressed = this.selection));
    take.addEventListener("pointercancel", () => (this.#pressed = null));
    take.addEventListener("click", () => this.#takeSelection());
  }

  draw() {
    this.button.hidden = !this.desk.cards.cards.size;
    if (this.button.hidden) this.#turn(false);
    else if (this.isOn) this.#goTo(focused().closest(".card .text"), 0);
  }

  #turn(isOn) {
    if (isOn === this.isOn) return;
    this.isOn = isOn;
    this.button.setAttribute("aria-pressed", String(isOn));
    find("#combine-hint").hidden = !isOn;
    document.body.classList.toggle("combining", isOn);
    this.#at = null;
    this.#highlight(null);
    if (isOn) this.#goTo(focused().closest(".card .text"), 0);
  }

  #point(event) {
    const text = event.target.closest(".card .text");
    if (!text || !(this.isOn || this.selection)) return;
    event.stopPropagation();
    if (!this.isOn) return;
    const all = sentencesOf(textOf(this.desk.cards.nodeOf(text)));
    const isThere = ({ left, right, top, bottom }) => left <= event.clientX && event.clientX <= right && top <= event.clientY && event.clientY <= bottom;
    const found = all.find(([from, to]) => [...within(text, from, to).getClientRects()].some(isThere));
    this.#highlight(text, found);
    if (event.type !== "click" || !found || this.selection) return;
    this.#take(text, found);
    this.desk.story.resume();
  }

  /** Arrow keys move between sentences, with Shift they extend; Enter takes them; Escape leaves. */
  #key(event) {
    const at = this.#at;
    if (!this.isOn || !at || focused() !== at.text || event.ctrlKey || event.metaKey || event.altKey) return;
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (by) this.#goTo(at.text, at.last + by, event.shiftKey ? at.first : undefined);
    else if (event.key === "Enter") this.#take(at.text, this.#span(at));
    else if (event.key === "Escape") this.#turn(false);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  #span({ text, first, last }) {
    const all = sentencesOf(textOf(this.desk.cards.nodeOf(text)));
    return /** @type {[number, number]} */ ([all[Math.min(first, last)][0], all[Math.max(first, last)][1]]);
  }

  /** Move the keyboard to a sentence, or extend from the sentence `first` to it. */
  #goTo(text, k, first = k) {
    const { length } = text ? sentencesOf(textOf(this.desk.cards.nodeOf(text))) : [];
    if (!length) return;
    const last = Math.max(0, Math.min(k, length - 1));
    this.#at = { text, first: first === k ? last : first, last };
    this.#highlight(text, this.#span(this.#at));
    showStatus(`Sentence ${last + 1} of ${length}. Enter adds it.`);
  }

  /**
   * @param {Element | null} text
   * @param {[from: number, to: number]} [span]
   */
  #highlight(text, span) {
    if (!globalThis.Highlight) return;
    CSS.highlights.set("sentence", text && span ? new Highlight(within(text, ...span)) : new Highlight());
  }

  #take(text, [from, to]) {
    const { desk } = this;
    const node = this.desk.cards.nodeOf(text);
    const passage = passageOf(textOf(node), from, to, desk.tree.text(node.parent));
    const { top } = text.getBoundingClientRect();
    desk.insert(passage, joined);
    scrollBy(0, text.getBoundingClientRect().top - top); // the text has grown above the alternative
    showStatus(`Added: “${shorten(passage, NAME)}”`);
  }

  get selection() {
    const selection = getSelection();
    if (!selection?.rangeCount || selection.isCollapsed) return null;
    const range = selection.getRangeAt(0);
    const around = range.commonAncestorContainer;
    const text = (around instanceof Element ? around : around.parentElement)?.closest(".card .text");
    return text && range.toString().trim() ? { text, range: range.cloneRange() } : null;
  }

  /** Show the button of a selected passage. */
  #follow() {
    const isShown = this.takeButton.matches(":popover-open");
    if (this.#pressed) return undefined;
    if (!this.selection) return isShown && this.takeButton.hidePopover();
    this.desk.tokenPreview.close(); // the press that began the selection opened it
    if (!isShown) this.takeButton.showPopover();
    this.#place();
  }

  #place() {
    const { style } = this.takeButton;
    Object.assign(style, { left: "", top: "" });
    if (isNarrow.matches) return;
    const last = [.../** @type {any} */ (this.selection).range.getClientRects()].at(-1);
    const { width, height } = this.takeButton.getBoundingClientRect();
    const below = last.bottom + MARGIN;
    style.left = `${Math.max(MARGIN, Math.min(last.right - width / 2, innerWidth - width - MARGIN))}px`;
    style.top = `${below + height < innerHeight ? below : last.top - height - MARGIN}px`;
  }

  #takeSelection() {
    const selection = this.#pressed ?? this.selection;
    this.#pressed = null;
    if (!selection) return;
    const { text, range } = selection;
    const until = new Range();
    until.setStart(text, 0);
    until.setEnd(range.startContainer, range.startOffset);
    const from = until.toString().length;
    this.#take(text, [from, from + range.toString().length]);
    getSelection()?.removeAllRanges();
    this.#follow();
    this.desk.story.resume();
  }
}

/** Take the selected passage; without one, turn the mode on or off. */
export const pressCombine = () => findAll("#take-passage:popover-open, #combine:not([hidden])").at(-1)?.click();
