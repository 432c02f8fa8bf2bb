// @ts-check
// Drafts: typed text that isn't in the tree yet, one per place. A place is a node.

import { packMarks, unpackMarks } from "./authorship.js";
import { applied, between, composed, difference, marking, rebased } from "./text_merge.js";
import { newId, ROOT } from "./tree.js";

/** @typedef {import("../vendor/codemirror.js").ChangeSet} ChangeSet */

/**
 * @typedef {{ text?: string, marks?: string, into?: string }} Draft its text and the marks of authorship.js, packed; or
 *   the node that its text has become
 * @typedef {object} Version of a draft, as it is stored here or on the server
 * @property {string} [version] its id
 * @property {[version: string, changes: any][]} [log] the last versions before it, each with the changes that followed
 * @property {any} [unsent] the changes that the server doesn't have, if they are known
 *
 * @typedef {{ changes: Map<string, ChangeSet>, into?: string }} Met the changes of the text at each place, and the place
 *   where the text of the draft is now
 */

const LONGEST_LOG = 20_000; // characters

/** Move drafts to nodes with other ids. */
export const moveDrafts = (drafts, ids) =>
  drafts.filter(([, { text }]) => text !== undefined).map(([place, draft]) => [ids.get(place) ?? ROOT, draft]);

export const isSameDraft = (a, b) => a?.text === b?.text && a?.into === b?.into && (a?.marks ?? "") === (b?.marks ?? "");

const shortened = (log) => (log.length && JSON.stringify(log).length > LONGEST_LOG ? shortened(log.slice(Math.ceil(log.length / 2))) : log);

/**
 * Return the version of a draft that some changes make of another one.
 * @param {Draft | undefined} draft
 * @param {Version | undefined} before
 * @param {any[]} changes as of `typed`
 * @returns {Draft & Version}
 */
export function nextVersion(draft, { version = "", log = [] } = {}, [changes]) {
  if (changes === undefined) return { ...draft, version, log };
  return { ...draft, version: newId(), log: changes ? shortened([...log, [version, changes.toJSON()]]) : [] };
}

/** Return the changes from one version of a draft to another one, if they are known. */
export const changesSince = ({ version = "" } = {}, { log = /** @type {any[]} */ ([]) } = {}) => {
  const from = log.findIndex(([each]) => each === version);
  return from < 0 ? [] : log.slice(from).map(([, changes]) => changes);
};

/** Compares the text box with the tree. What differs is the writer's, and stays until it is in the tree. */
export class Drafts {
  /** @type {Map<string, Draft>} */
  #drafts = new Map();
  #changed = new Set();
  /** By place, what was typed since the draft was stored; null: unknown. @type {Map<string, (ChangeSet | null)[]>} */
  #typed = new Map();
  /** The same, while it is being stored. @type {Map<string, (ChangeSet | null)[]>} */
  #storing = new Map();
  /** By place, what the server doesn't have, while that is being stored. @type {Map<string, ChangeSet | null>} */
  unsent = new Map();
  /** @type {string | null} */
  place = null; // the current place
  treeText = ""; // the tree's text at that place

  /**
   * @param {[place: string, draft: Draft][]} [stored]
   * @param {(place: string) => { text: string, marks: string }} [inTree] returns the tree's text at a place
   */
  constructor(stored = [], inTree = () => ({ text: "", marks: "" })) {
    for (const [place, { text, marks, into }] of stored) this.#set(place, text === undefined ? into && { into } : { text, marks });
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

  /** Return the draft of a place as it is stored. */
  get(place) {
    return this.#drafts.get(place);
  }

  /** @returns {any} */
  at(place) {
    return this.get(place)?.text;
  }

  has(place) {
    return this.at(place) !== undefined;
  }

  /** Return the text at a place: its draft, or else the tree's. */
  shown(place, { text, marks } = this.get(place) ?? {}) {
    return text === undefined ? this.inTree(place) : { text, marks: unpackMarks(marks, text.length) };
  }

  /** Return the places whose drafts the writer has changed since the last call. */
  changes() {
    const places = [...this.#changed];
    this.#changed.clear();
    return places;
  }

  /** @returns {{ text: string, marks: string }} what to show in the box */
  go(place) {
    const inTree = this.inTree(place);
    [this.place, this.treeText] = [place, inTree.text];
    return this.has(place) ? this.shown(place) : inTree;
  }

  /** Update the draft of the current place to the text of the box. */
  type(text, marks, changes) {
    if (this.place !== null) this.put(this.place, text === this.treeText ? undefined : text, marks, changes);
  }

  /** Set the draft of a place, or remove it. `changes` have made it of the text before. */
  put(place, text, marks = () => undefined, changes) {
    if (this.at(place) === text) return;
    this.#note(place, changes ?? difference(this.shown(place).text, text ?? this.inTree(place).text));
    this.#set(place, text === undefined ? undefined : { text, marks: marks() });
    this.#changed.add(place);
  }

  /** Remove a draft that is now in the tree, in the node `into`. What was typed since stays a draft. */
  settle(place, text, into) {
    if (this.at(place) !== text) return;
    this.#set(place, { into });
    this.#changed.add(place);
    if (place === this.place) this.treeText = text;
  }

  /** Return what was typed at a place since its draft was stored, as change sets; null stands for unknown ones. */
  typed(place) {
    return this.#typed.get(place) ?? [];
  }

  #note(place, changes) {
    this.#typed.set(place, [composed([...this.typed(place), changes])]);
  }

  /**
   * Return what to store of a draft in place of what is stored, until `stored` or `unstore`. What is typed from now on
   * isn't in that.
   */
  store(place, stored) {
    const [draft, typed] = [this.get(place), this.typed(place)];
    const unsent = this.unsent.get(place) ?? composed([stored?.unsent, ...typed]);
    this.#storing.set(place, typed);
    this.#typed.delete(place);
    this.unsent.delete(place);
    return draft && { ...nextVersion(draft, stored, typed.length ? [composed(typed)] : []), unsent: unsent?.toJSON() };
  }

  stored() {
    this.#storing.clear();
  }

  /** Take back what couldn't be stored. */
  unstore() {
    for (const [place, typed] of this.#storing) this.#typed.set(place, [...typed, ...this.typed(place)]);
    this.#storing.clear();
  }

  /** Return the changes between a version of a draft and this page's. */
  since(place, base, known) {
    const mine = this.get(place);
    return between(base?.text ?? this.inTree(place).text, mine?.text ?? this.#said(place, mine, base).text, known);
  }

  /**
   * Merge what another tab or device has made of the draft of a place. If one of them has made a node of it, what the
   * other has typed goes to the draft there.
   * @param {string} place
   * @param {Draft & Version | undefined} base what both have changed
   * @param {Draft & Version | undefined} theirs
   * @param {any[]} [unsent] the changes here since `base`, if `theirs` isn't what this browser has stored
   * @returns {Met | null} null if nothing changes
   */
  meet(place, base, theirs, unsent) {
    const mine = this.get(place);
    if (isSameDraft(mine, theirs) && !unsent) this.#typed.delete(place);
    if (isSameDraft(mine, theirs) || isSameDraft(base, theirs)) return null;
    const before = base?.text ?? this.inTree(place).text;
    if (theirs?.into && !before && mine?.text) return null; // it is another beginning
    const [own, others] = [mine, theirs].map((draft) => this.#said(place, draft, base));
    const [made, news] = [this.since(place, base, unsent ?? this.typed(place)), between(before, others.text, changesSince(base, theirs))];
    const both = rebased(made, news);
    const marks = rebased(marking(made, own.marks), marking(news, others.marks), marking(both.parting, ""));
    if (unsent) {
      this.#note(place, both.others);
      this.unsent.set(place, both.own);
    } else this.#typed.set(place, [both.own]);
    if (theirs?.into) {
      this.#set(place, { into: theirs.into });
      if (mine?.text === undefined) return null;
      const into = this.#end(theirs.into);
      const since = between(others.text, this.shown(into).text, this.typed(into));
      const changes = this.#change(into, both.own.map(since), marks.own.map(since));
      return { changes: new Map([[into, changes], [place, both.others.compose(since.map(both.own, true))]]), into };
    }
    if (mine?.into && before && !isSameDraft(base, mine)) {
      if (theirs?.text === undefined) return null;
      const into = this.#end(mine.into);
      const since = between(own.text, this.shown(into).text, this.typed(into));
      return { changes: new Map([[into, this.#change(into, both.others.map(since, true), marks.others.map(since, true))]]) };
    }
    if (isSameDraft(base, mine) && made.empty) this.#set(place, theirs?.text === undefined ? undefined : { text: theirs.text, marks: theirs.marks });
    else this.#put(place, both.others, marks.others);
    return { changes: new Map([[place, both.others]]) };
  }

  #change(place, changes, marks) {
    this.#note(place, changes);
    this.#put(place, changes, marks);
    return changes;
  }

  /** Change the text at a place, and its marks. */
  #put(place, changes, marking) {
    const { text, marks } = this.shown(place);
    const now = applied(text, changes);
    this.#set(place, now === this.inTree(place).text ? undefined : { text: now, marks: packMarks(applied(marks, marking)) });
  }

  /** Return the text of a draft, or of the node that it has become since `base`. */
  #said(place, draft = {}, base) {
    return draft.into === undefined || draft.into === base?.into ? this.shown(place, draft) : this.inTree(draft.into);
  }

  /** The node that has a text now: its own draft may have become another node. */
  #end(place, seen = new Set()) {
    const { into } = this.get(place) ?? {};
    return into === undefined || seen.has(place) ? place : this.#end(into, seen.add(place));
  }

  #set(place, draft) {
    if (draft) this.#drafts.set(place, draft);
    else this.#drafts.delete(place);
  }
}
