// @ts-check
// A preview of one token: the most probable tokens at its place. Choosing one forks the alternative there.

import { create, find, findAll, focused } from "../lib/dom.js";
import { safely } from "../lib/messages.js";

const REST_MILLISECONDS = 120; // a pointer that only crosses the text opens nothing
const LEAVE_MILLISECONDS = 200;

const MARGIN = 4; // pixels around the list

const BARE = ".card .text:not(:has([data-k]))"; // without probabilities

const isNarrow = matchMedia("(max-width: 37.5rem)"); // as in cards.css, where the list is at the bottom

export const areShaded = () => document.body.classList.contains("shaded"); // with probabilities, tokens are shown exactly

/** Show the text of a token. A token that continues a word starts with a hyphen. */
export function visible(/** @type {string} */ text, before = "") {
  if (areShaded()) return text.replaceAll(" ", "␣").replaceAll("\n", "¶").replaceAll("\t", "⇥") || "(nothing)";
  if (!text) return "(the end)";
  const words = text.replace(/\s*\n\s*/g, " ¶ ").replace(/\s+/g, " ").trim();
  return `${/[\p{L}\p{N}]\|[\p{L}\p{N}]/u.test(`${before}|${text}`) ? "-" : ""}${words || "(a space)"}`;
}

export const percent = (p) => (p < 0.001 ? "< 0.1 %" : `${(p * 100).toFixed(p < 0.1 ? 1 : 0)} %`);

export class TokenPreview {
  element = find("#token-preview");
  token = /** @type {any} */ (null); // an element with `data-k`, inside one with `data-node`, or the text
  pointer = [0, 0];

  /** @param {import("./desk.js").Desk} desk */
  constructor(desk) {
    this.desk = desk;
    // Not pointerover, which fires when text moves under a resting pointer; not pointerdown, which starts a swipe.
    for (const name of ["pointermove", "click"]) document.addEventListener(name, (event) => this.#point(/** @type {PointerEvent} */ (event)));
    document.addEventListener("focusin", (event) => this.#focus(event.target));
    document.addEventListener("keydown", (event) => this.#key(event));
    document.addEventListener("scroll", ({ target }) => this.#scroll(target), { capture: true, passive: true });
  }

  #point({ target, type, pointerType, clientX, clientY }) {
    if (type === "pointermove" && pointerType === "touch") return;
    this.pointer = [clientX, clientY];
    const token = target.closest?.("[data-k]");
    const bare = target.closest?.(BARE);
    const pointed = token ?? bare ?? target.closest?.("#token-preview") ?? null;
    if (pointed === this.pointed && type === "pointermove") return;
    this.pointed = pointed;
    clearTimeout(this.resting);
    if (!pointed && type === "click") return this.close();
    const rest = type === "click" ? 0 : REST_MILLISECONDS;
    if (token) this.resting = setTimeout(() => this.#show(token), rest);
    else if (bare) this.resting = setTimeout(() => this.#recall(bare), rest);
    else if (this.token && !pointed && !this.#holdsFocus()) this.resting = setTimeout(() => this.close(), LEAVE_MILLISECONDS);
  }

  /** Request the probabilities of a text, then show the token under the pointer. */
  async #recall(text) {
    if (!(await this.desk.probabilities.ask(this.desk.cards.nodeOf(text)))) return;
    const token = document.elementFromPoint(this.pointer[0], this.pointer[1])?.closest("[data-k]");
    if (token) this.#show(token);
  }

  /** Request the probabilities of the focused text, then move to its first token. */
  async #walkIn(text) {
    const isKnown = await this.desk.probabilities.ask(this.desk.cards.nodeOf(text));
    if (isKnown && document.activeElement === text) find("[data-k]", text)?.focus();
  }

  #focus(target) {
    if (target.matches("[data-k]") && !document.body.classList.contains("combining")) this.#show(target);
    else if (target !== this.token && !target.closest("#token-preview")) this.close();
  }

  #holdsFocus() {
    return this.element.contains(document.activeElement) || document.activeElement === this.token;
  }

  /** Arrow keys move between tokens, Enter opens the list of a token, Escape returns. */
  #key(event) {
    const at = focused();
    if (at.matches(".text, [data-k]")) {
      const tokens = findAll("[data-k]", /** @type {Element} */ (at.closest(".text")));
      const k = tokens.indexOf(at);
      if (event.key === "ArrowRight" && tokens.length) this.#move(event, tokens[k + 1]);
      else if (event.key === "ArrowRight") this.#walkIn(at);
      else if (event.key === "ArrowLeft" && k >= 0) this.#move(event, tokens[k - 1]);
      else if (["Enter", "ArrowDown"].includes(event.key) && k >= 0) {
        this.#show(at);
        this.#move(event, find("button", this.element));
      }
    } else if (this.element.contains(at)) {
      const buttons = findAll("button", this.element);
      const k = buttons.indexOf(at);
      if (event.key === "ArrowDown") this.#move(event, buttons[k + 1]);
      if (event.key === "ArrowUp") this.#move(event, buttons[k - 1] ?? this.token);
      if (event.key === "Escape") event.preventDefault(); // Escape only leaves the list
      if (this.token.matches("[contenteditable]") && (isTyped(event) || document.activeElement === this.token)) this.close(); // the key goes to the text
    }
    if (event.key === "Escape") this.close();
  }

  #move(event, to) {
    event.preventDefault();
    to?.focus();
  }

  #show(token) {
    if (this.token === token) return;
    const node = this.desk.cards.nodeOf(token);
    const k = Number(token.dataset.k);
    const { desk } = this;
    const fork = safely(async (choice) => {
      desk.story.resume(); // keys pressed meanwhile go to the text
      const forked = await desk.add(desk.tree.forked(node.id, k, choice));
      desk.keep(forked);
      return desk.writing.generateFrom(forked.id);
    });
    const keepUpTo = safely(async () => {
      desk.story.resume();
      desk.keep(await desk.add(desk.tree.upTo(node.id, k)));
    });
    this.#open(token, node.pieces[k], node.pieces[k - 1]?.text, fork);
    this.#button(this.element, "up-to", "Keep up to here", keepUpTo);
    this.#place([...token.getClientRects()].at(-1)); // the last part: the space may end the previous line
  }

  /**
   * Show other words for a word of the text. The box is focused again afterwards.
   * @param {HTMLElement} box
   * @param {DOMRect} place on the screen
   * @param {{ before: string, passage: string, behind: string }} taken
   * @param {import("../story/tree.js").Piece} piece the first token of the word
   * @param {(choice: any) => any} choose
   * @param {{ text: string, choose: () => void }[]} swaps words that replace only this one
   */
  lookAt(box, place, { before, passage, behind }, piece, choose, swaps) {
    this.#open(box, piece, before.at(-1), choose, passage);
    if (swaps.length) {
      const list = create("ul", {});
      for (const swap of swaps) this.#button(list.appendChild(create("li", {})), "", swap.text, swap.choose);
      find("ul", this.element).before(create("p", {}, "Swap only this word:"), list);
    }
    if (behind.trim()) findAll("ul", this.element).at(-1).before(create("p", {}, "Go another way from here:"));
    this.#place(place);
    find("button", this.element).focus();
  }

  /** Open the list. `word` is what the piece is part of. */
  #open(token, piece, before, choose, word = piece.text) {
    this.close();
    this.token = token;
    token.classList.add("looked-at");
    const title = areShaded() ? `${visible(piece.text)} had ${percent(piece.p)}. Other words:` : `Instead of “${visible(word, before)}”:`;
    const list = create("ul", {});
    for (const choice of piece.top) {
      const button = this.#button(list.appendChild(create("li", {})), choice.id === piece.ids?.at(-1) ? "taken" : "", "", () => choose(choice));
      button.append(visible(choice.text, before), " ", create("span", {}, areShaded() ? percent(choice.p) : ""));
    }
    this.element.replaceChildren(create("p", {}, title), list);
    this.element.showPopover();
  }

  #button(parent, className, textContent, act) {
    const button = create("button", { type: "button", className, textContent });
    button.addEventListener("click", () => {
      this.close();
      act();
    });
    parent.append(button);
    return button;
  }

  /**
   * Place the list above the word, since the next words and the buttons are below; never over the bar with Generate.
   * If there is no room above or below, place it at the side.
   */
  #place(word) {
    Object.assign(this.element.style, { left: "", top: "" });
    const { width, height } = this.element.getBoundingClientRect();
    if (isNarrow.matches) return scrollBy(0, Math.max(0, word.bottom + MARGIN - (innerHeight - height)));
    const bar = find("#bar").getBoundingClientRect();
    const [top, bottom] = bar.top < word.top ? [Math.max(0, bar.bottom), innerHeight] : [0, Math.min(bar.top, innerHeight)];
    const isBeside = word.top - height < top && word.bottom + height > bottom;
    const y = word.top - height >= top ? word.top - height : Math.min(word.bottom, bottom - height);
    const x = isBeside ? (word.right + width + MARGIN < innerWidth ? word.right + MARGIN : word.left - width - MARGIN) : word.left;
    this.element.style.left = `${Math.max(MARGIN, Math.min(x, innerWidth - width - MARGIN))}px`;
    this.element.style.top = `${Math.max(0, y)}px`;
  }

  /** At the bottom of the screen, the list stays while the page scrolls, so that its word can be scrolled into view. */
  #scroll(scrolled) {
    if (!isNarrow.matches || scrolled !== document) this.close();
  }

  close() {
    clearTimeout(this.resting);
    this.pointed = undefined;
    if (!this.token) return;
    // A hidden element loses the focus only with the next frame; code that asks earlier must not find it there.
    if (this.element.contains(document.activeElement)) this.token.focus({ preventScroll: true });
    this.token.classList.remove("looked-at");
    this.token = null;
    this.element.hidePopover();
  }
}

const isTyped = ({ key, ctrlKey, metaKey, altKey }) => key.length === 1 && key !== " " && !ctrlKey && !metaKey && !altKey;
