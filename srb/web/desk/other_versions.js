// @ts-check
// Other versions of texts that were changed in two places, below their boxes: the writer chooses.

import { find, findAll, isFocusLost } from "../lib/dom.js";
import { difference } from "../story/text_merge.js";

/** @typedef {import("../story/merging.js").Version} Version */

const isSame = (a, b) => a.name === b.name && a.text === b.text;

/**
 * Show in a box what was written elsewhere. The cursor stays between the same characters.
 * @param {any} box
 * @param {string | number} value
 */
export function followText(box, value) {
  if (box.value === String(value)) return;
  if (box !== document.activeElement || !["text", "textarea"].includes(box.type)) return void (box.value = value);
  const changes = difference(box.value, String(value));
  const [from, to] = [box.selectionStart, box.selectionEnd].map((at) => changes.mapPos(at));
  box.value = value;
  box.setSelectionRange(from, to, box.selectionDirection);
}

export class OtherVersions {
  /** @type {Version[]} */
  #all = [];

  /**
   * @param {HTMLElement} panel
   * @param {(name: string) => any} boxOf finds the box of a text by its name
   */
  constructor(panel, boxOf) {
    this.panel = panel;
    this.boxOf = boxOf;
  }

  get all() {
    return this.#all;
  }

  /** @param {Version[]} versions */
  set all(versions) {
    this.#all = versions;
    for (const row of findAll(".other-version", this.panel)) row.remove();
    for (const each of versions) this.#show(each);
  }

  #show(version) {
    const box = this.boxOf(version.name);
    if (!box) return;
    const row = find("#other-version").content.firstElementChild.cloneNode(true);
    find("blockquote", row).textContent = version.text;
    find("[value=use]", row).addEventListener("click", () => this.#use(version, box));
    find("[value=drop]", row).addEventListener("click", () => this.#replace(version, [], box));
    (box.closest("label") ?? box).after(row);
    for (let at = box.closest("details"); at; at = at.parentElement.closest("details")) at.open = true;
  }

  /** Swap both texts: none is lost by this. */
  #use(version, box) {
    const { name, text } = version;
    const before = box.value;
    box.value = text;
    box.dispatchEvent(new Event("input", { bubbles: true }));
    this.#replace(version, before.trim() ? [{ name, text: before }] : [], box);
  }

  #replace(version, others, box) {
    this.all = this.#all.flatMap((each) => (isSame(each, version) ? others : [each]));
    if (isFocusLost()) box.focus();
    box.dispatchEvent(new Event("input", { bubbles: true })); // to save it
  }
}

/**
 * Return the versions of the second list that the first one doesn't have.
 * @param {Version[]} [known]
 * @param {Version[]} [versions]
 */
export const newVersions = (known = [], versions = []) => versions.filter((each) => !known.some((other) => isSame(each, other)));
