// @ts-check
// Drafts: typed text that isn't in the tree yet, one per place. A place is a node.

import { ROOT } from "./tree.js";

const KNOWN = 20; // stored texts of each place

/**
 * Move drafts to nodes with other ids.
 * @param {[place: string, text: string][]} drafts
 * @param {Map<string, string>} ids old to new
 * @returns {[place: string, text: string][]}
 */
export const moveDrafts = (drafts, ids) => drafts.map(([place, text]) => [ids.get(place) ?? ROOT, text]);

/**
 * Move the marks of drafts likewise.
 * @param {Record<string, string>} marks
 * @param {Map<string, string>} ids
 * @returns {Record<string, string>}
 */
export const moveMarks = (marks, ids) => Object.fromEntries(moveDrafts(Object.entries(marks), ids));

/** Compares the text box with the tree. What differs is the writer's, and stays until it is in the tree. */
export class Drafts {
  #texts;
  #marks; // packed by authorship.js
  #changed = new Set();
  #known = new Map(); // the last texts of each place that were stored or read
  /** @type {string | null} */
  place = null; // the current place
  treeText = ""; // the tree's text at that place

  /**
   * @param {[place: string, text: string][]} [stored] stored ones
   * @param {Record<string, string>} [marks] packed, by place
   */
  constructor(stored = [], marks = {}) {
    this.#texts = new Map(stored);
    for (const [place, text] of stored) this.#know(place, text);
    this.#marks = new Map(Object.entries(marks));
  }

  get all() {
    return [...this.#texts];
  }

  at(place) {
    return this.#texts.get(place);
  }

  marks(place) {
    return this.#marks.get(place);
  }

  get allMarks() {
    return Object.fromEntries(this.#marks);
  }

  has(place) {
    return this.#texts.has(place);
  }

  /**
   * Return the places whose drafts have changed since the last call.
   * @returns {string[]}
   */
  changes() {
    const places = [...this.#changed];
    this.#changed.clear();
    return places;
  }

  /**
   * Go to a place.
   * @param {string} place
   * @param {string} text what the tree has there
   * @returns {string} what to show in the box
   */
  go(place, text) {
    this.place = place;
    this.treeText = text;
    return this.at(place) ?? text;
  }

  /**
   * Update the draft of the current place.
   * @param {string} text of the box
   * @param {() => string} marks
   */
  type(text, marks) {
    if (this.place !== null) this.put(this.place, text === this.treeText ? undefined : text, marks);
  }

  /**
   * Set the draft of a place, or remove it.
   * @param {string} place
   * @param {string | undefined} text
   * @param {() => string | undefined} [marks]
   */
  put(place, text, marks = () => undefined) {
    if (!this.#set(place, text)) return;
    if (text === undefined) this.#marks.delete(place);
    else this.#marks.set(place, marks());
  }

  /**
   * Remove a draft that is now in the tree. What was typed since stays a draft.
   * @param {string} place
   * @param {string} text
   */
  settle(place, text) {
    if (this.at(place) !== text) return;
    this.put(place, undefined);
    if (place === this.place) this.treeText = text;
  }

  /**
   * Take over a draft that another tab or device has saved.
   * @param {string} place
   * @param {string | undefined} text
   * @param {string | undefined} marks packed
   */
  follow(place, text, marks) {
    const isChanged = this.#changed.has(place);
    this.put(place, text, () => marks);
    if (text !== undefined) this.#know(place, text);
    if (!isChanged) this.#changed.delete(place);
  }

  /**
   * Return drafts to store, and which stored ones are this page's at this moment. Later keys don't change that.
   * @param {string[]} places
   * @returns {{ drafts: [place: string, text: string | undefined][], knows: (place: string, text: string) => boolean }}
   */
  storing(places) {
    const known = new Map(places.map((place) => [place, this.#known.get(place) ?? []]));
    const drafts = places.map((place) => /** @type {[string, string | undefined]} */ ([place, this.at(place)]));
    for (const [place, text] of drafts) if (text !== undefined) this.#know(place, text);
    return { drafts, knows: (place, text) => known.get(place)?.includes(text) ?? false };
  }

  /**
   * Whether this page has lately stored this draft at a place, or read it. Otherwise it is somebody else's.
   * @param {string} place
   * @param {string} text
   * @returns {boolean}
   */
  knows(place, text) {
    return this.#known.get(place)?.includes(text) ?? false;
  }

  #know(place, text) {
    this.#known.set(place, [...(this.#known.get(place) ?? []), text].slice(-KNOWN));
  }

  #set(place, text) {
    if (this.at(place) === text) return false;
    if (text === undefined) this.#texts.delete(place);
    else this.#texts.set(place, text);
    this.#changed.add(place);
    return true;
  }
}
