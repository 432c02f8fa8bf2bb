// @ts-check
// What was typed and isn't in the tree yet: a draft for each place, which is a node. Pure.

import { ROOT } from "./tree.js";

// The drafts of a tree whose nodes get other ids: a Map of old to new ones.
export const moveDrafts = (drafts, ids) => drafts.map(([place, text]) => [ids.get(place) ?? ROOT, text]);

// Knows what the text box was drawn with. What differs from that is the writer's, and stays until it's in the tree.
export class Drafts {
  #texts;
  #marks; // who wrote them, as marks.js packs it
  #changed = new Set();
  place = null; // where the box is
  drawn = ""; // what the tree has there

  // kept: [place, text] of those that were there before. marks: theirs, by place.
  constructor(kept = [], marks = {}) {
    this.#texts = new Map(kept);
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

  // The places whose drafts are others than when this was asked last.
  changes() {
    const places = [...this.#changed];
    this.#changed.clear();
    return places;
  }

  // Goes to a place where the tree has this text. Returns what the box has there.
  go(place, text) {
    this.place = place;
    this.drawn = text;
    return this.at(place) ?? text;
  }

  // The box has this text. marks() tells its marks.
  type(text, marks) {
    if (this.place !== null) this.put(this.place, text === this.drawn ? undefined : text, marks);
  }

  // A place has this draft; without a text none.
  put(place, text, marks = () => undefined) {
    if (!this.#set(place, text)) return;
    if (text === undefined) this.#marks.delete(place);
    else this.#marks.set(place, marks());
  }

  // This text, which was typed at a place, is in the tree. What was typed there since stays a draft.
  settle(place, text) {
    if (this.at(place) !== text) return;
    this.put(place, undefined);
    if (place === this.place) this.drawn = text;
  }

  #set(place, text) {
    if (this.at(place) === text) return false;
    if (text === undefined) this.#texts.delete(place);
    else this.#texts.set(place, text);
    this.#changed.add(place);
    return true;
  }
}
