// @ts-check
// Drafts: typed text that isn't in the tree yet, one per place. A place is a node.

import { packMarks, unpackMarks } from "./authorship.js";
import { applied, difference, mergeTexts } from "./text_merge.js";
import { ROOT } from "./tree.js";

/**
 * @typedef {{ text?: string, marks?: string, into?: string }} Draft its text and the marks of authorship.js, packed; or
 *   the node that its text has become
 * @typedef {{ changes: Map<string, import("../vendor/codemirror.js").ChangeSet>, into?: string }} Met the changes of
 *   the text at each place, and the place where the text of the draft is now
 */

/**
 * Move drafts to nodes with other ids.
 * @param {[place: string, draft: Draft][]} drafts
 * @param {Map<string, string>} ids old to new
 * @returns {[place: string, draft: Draft][]}
 */
export const moveDrafts = (drafts, ids) =>
  drafts.filter(([, { text }]) => text !== undefined).map(([place, draft]) => [ids.get(place) ?? ROOT, draft]);

/**
 * Whether two drafts are the same.
 * @param {Draft | undefined} a
 * @param {Draft | undefined} b
 */
export const isSameDraft = (a, b) => a?.text === b?.text && a?.into === b?.into && (a?.marks ?? "") === (b?.marks ?? "");

/** Compares the text box with the tree. What differs is the writer's, and stays until it is in the tree. */
export class Drafts {
  /** @type {Map<string, Draft>} */
  #drafts;
  #changed = new Set();
  /** @type {string | null} */
  place = null; // the current place
  treeText = ""; // the tree's text at that place

  /**
   * @param {[place: string, draft: Draft][]} [stored]
   * @param {(place: string) => { text: string, marks: string }} [inTree] returns the tree's text at a place
   */
  constructor(stored = [], inTree = () => ({ text: "", marks: "" })) {
    this.#drafts = new Map(stored);
    this.inTree = inTree;
  }

  /** @returns {[place: string, text: string][]} */
  get all() {
    return [...this.#drafts].flatMap(([place, { text }]) => (text === undefined ? [] : [/** @type {[string, string]} */ ([place, text])]));
  }

  get allMarks() {
    return Object.fromEntries([...this.#drafts].flatMap(([place, { text, marks }]) => (text === undefined ? [] : [[place, marks]])));
  }

  get places() {
    return [...this.#drafts.keys()];
  }

  /**
   * Return the draft of a place as it is stored.
   * @param {string} place
   */
  get(place) {
    return this.#drafts.get(place);
  }

  /** @returns {any} */
  at(place) {
    return this.get(place)?.text;
  }

  marks(place) {
    return this.get(place)?.marks;
  }

  has(place) {
    return this.at(place) !== undefined;
  }

  /**
   * Return the text at a place: its draft, or else the tree's.
   * @param {string} place
   * @param {Draft} [draft]
   * @returns {{ text: string, marks: string }}
   */
  shown(place, { text, marks } = this.get(place) ?? {}) {
    return text === undefined ? this.inTree(place) : { text, marks: unpackMarks(marks, text.length) };
  }

  /**
   * Return the places whose drafts the writer has changed since the last call.
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
    if (this.at(place) === text) return;
    this.#set(place, text === undefined ? undefined : { text, marks: marks() });
    this.#changed.add(place);
  }

  /**
   * Remove a draft that is now in the tree. What was typed since stays a draft.
   * @param {string} place
   * @param {string} text
   * @param {string} into the node that has it
   */
  settle(place, text, into) {
    if (this.at(place) !== text) return;
    this.#set(place, { into });
    this.#changed.add(place);
    if (place === this.place) this.treeText = text;
  }

  /**
   * Merge what another tab or device has made of the draft of a place. If one of them has made a node of it, what the
   * other has typed goes to the draft there.
   * @param {string} place
   * @param {Draft | undefined} base what both have changed
   * @param {Draft | undefined} theirs
   * @returns {Met | null} null if nothing changes
   */
  meet(place, base, theirs) {
    const mine = this.get(place);
    if (isSameDraft(mine, theirs) || isSameDraft(base, theirs)) return null;
    const before = this.shown(place, base ?? {}).text;
    const [own, others] = [mine, theirs].map((draft) => this.shown(place, draft ?? {}));
    if (theirs?.into) {
      if (!before && mine?.text) return null; // it is another beginning
      this.#set(place, theirs);
      if (mine?.text === undefined) return null;
      const into = this.#end(theirs.into);
      const changes = this.#merge(into, before, own);
      return { changes: new Map([[into, changes], [place, difference(own.text, this.shown(into).text)]]), into };
    }
    if (mine?.into && before && !isSameDraft(base, mine)) {
      const into = this.#end(mine.into);
      return theirs ? { changes: new Map([[into, this.#merge(into, before, others)]]) } : null;
    }
    const isTheirs = isSameDraft(base, mine);
    const changes = this.#merge(place, before, others);
    if (isTheirs) this.#set(place, theirs);
    return { changes: new Map([[place, changes]]) };
  }

  /** Make the changes of a text in that of a place. */
  #merge(place, before, { text, marks }) {
    const [own, inTree] = [this.shown(place), this.inTree(place)];
    const changes = mergeTexts(before, own.text, text, marks);
    const now = applied(own.text, changes.changes);
    this.#set(place, now === inTree.text ? undefined : { text: now, marks: packMarks(applied(own.marks, changes.marks)) });
    return changes.changes;
  }

  /** The node that has a text now: its own draft may have become another node. */
  #end(place, seen = new Set()) {
    const { into } = this.get(place) ?? {};
    return into === undefined || seen.has(place) ? place : this.#end(into, seen.add(place));
  }

  /** @param {Draft | undefined} draft */
  #set(place, draft) {
    if (draft) this.#drafts.set(place, draft);
    else this.#drafts.delete(place);
  }
}
