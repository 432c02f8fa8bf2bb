// @ts-check
// The undo history, and the difference of two texts.
//
// A step is {kind: "text", place, at, removed, added, marks, by}, with the `marks` of `removed`, and `by`, one mark
// or the marks of `added`; {kind: "go", from, to, kept}, where from and to are {current, shown} and `kept` is the node that was kept;
// {kind: "replace", place, changes}, several changes at once, as `packChanges` returns them; or {kind: "discard", node},
// or "restore".

const MOST = 200; // steps
const WORDS = 20; // characters after which a step of typing ends with the word

/** The length of the common prefix or suffix of two texts, by bisection. */
function common(a, b, cut) {
  let [low, high] = [0, Math.min(a.length, b.length)];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (cut(a, middle) === cut(b, middle)) low = middle;
    else high = middle - 1;
  }
  return low;
}

const head = (text, length) => text.slice(0, length);
const tail = (text, length) => text.slice(text.length - length);

/**
 * Return the single change between two texts.
 * @param {string} before
 * @param {string} after
 * @param {number} [end] where the added text ends, if that is known: repeated letters are ambiguous
 * @returns {{ at: number, removed: string, added: string }}
 */
export function change(before, after, end = after.length) {
  const rest = after.length - end;
  const isEnd = rest <= before.length && tail(before, rest) === after.slice(end);
  const [a, b] = isEnd ? [head(before, before.length - rest), head(after, end)] : [before, after];
  const at = common(a, b, head);
  const same = isEnd ? rest : common(before.slice(at), after.slice(at), tail);
  return { at, removed: before.slice(at, before.length - same), added: after.slice(at, after.length - same) };
}

/**
 * Return the smallest change between two texts, wherever it was made.
 * @param {string} before
 * @param {string} after
 */
export function difference(before, after) {
  const at = common(before, after, head);
  const same = common(before.slice(at), after.slice(at), tail);
  return { at, removed: before.slice(at, before.length - same), added: after.slice(at, after.length - same) };
}

/**
 * @typedef {object} Change
 * @property {number} at
 * @property {string} removed
 * @property {string} added
 * @property {string} [marks] who wrote what was removed
 */

/**
 * Return the changes that undo these, which were made at once.
 * @param {Change[]} changes ascending, in the text before them
 */
export function inverse(changes) {
  let shift = 0;
  return changes.map(({ at, removed, added, marks }) => {
    const back = { at: at + shift, removed: added, added: removed, marks };
    shift += added.length - removed.length;
    return back;
  });
}

/**
 * Pack changes: a step is saved with each key, and most changes of a step differ in their places only.
 * @param {Change[]} changes
 */
export function packChanges(changes) {
  const packed = new Map();
  for (const { at, removed, added, marks } of changes) {
    const key = JSON.stringify([removed, added, marks]);
    if (packed.has(key)) packed.get(key).at.push(at);
    else packed.set(key, { at: [at], removed, added, marks });
  }
  return [...packed.values()];
}

/**
 * Move changes to where they are after another change of the text; and the other change to where it is once they are
 * made. Return null if both change the same characters.
 * @param {Change[]} changes to make, ascending, at once
 * @param {Change} other
 * @returns {{ shifts: number[], other: Change } | null} by how much each of the changes moves
 */
function pass(changes, other) {
  const grown = ({ added, removed }) => added.length - removed.length;
  let [isApart, at] = [true, other.at];
  const shifts = changes.map((each) => {
    if (other.at + other.removed.length <= each.at) return grown(other);
    if (each.at + each.removed.length > other.at) isApart = false;
    at += grown(each);
    return 0;
  });
  return isApart ? { shifts, other: { ...other, at } } : null;
}

/** @returns {Change[]} */
export const unpackChanges = (packed) =>
  packed.flatMap(({ at, ...same }) => at.map((each) => ({ ...same, at: each }))).sort((a, b) => a.at - b.at);

export class Steps {
  #isOpen = false; // whether typing can extend the last step

  constructor({ done = [], undone = [] } = {}) {
    const isKnown = ({ kind }) => kind !== "story"; // with these, older pages went on in another story
    this.done = done.filter(isKnown);
    this.undone = undone.filter(isKnown);
  }

  get all() {
    return { done: this.done, undone: this.undone };
  }

  push(step) {
    this.undone = [];
    const last = this.done.at(-1);
    if (this.#isOpen && last && isTypedOn(last, step)) last.added += step.added;
    else this.done = [...this.done, step].slice(-MOST);
    this.#isOpen = true;
  }

  /** Start a new step with the next key. */
  close() {
    this.#isOpen = false;
  }

  /**
   * Return the step to undo; null without one.
   * @returns {any}
   */
  undo() {
    return this.#move(this.done, this.undone);
  }

  redo() {
    return this.#move(this.undone, this.done);
  }

  #move(from, to) {
    this.close();
    if (!from.length) return null;
    to.push(from.pop());
    return to.at(-1);
  }

  /**
   * Move steps from a draft's place to the node that has its text now: all typing there, and the last arrival.
   * @param {string} from
   * @param {{ current: string, shown: string[] }} to
   */
  rename(from, to) {
    for (const step of [...this.done, ...this.undone]) if (step.place === from) step.place = to.current;
    for (const [steps, arrival, start] of /** @type {[any[], string, string][]} */ ([[this.done, "to", "from"], [this.undone, "from", "to"]]))
      for (const step of steps.filter(({ kind }) => kind === "go").toReversed()) {
        const [hasLeft, hasCome] = [step[start], step[arrival]].map(({ current }) => current === from);
        if (hasLeft) step[start] = to;
        if (hasCome) step[arrival] = to;
        if (hasCome && !hasLeft) break; // else only the shown alternatives change
      }
  }

  /**
   * Keep steps of a place right after somebody else has changed its text. Those at the changed characters go, with the
   * ones before them.
   * @param {string} place
   * @param {Change | null} other null: it is unknown, and all steps of the place go
   */
  follow(place, other) {
    this.close();
    for (const isDone of [true, false]) {
      let now = other;
      const steps = isDone ? this.done : this.undone;
      for (const step of steps.toReversed()) {
        if (step.place !== place) continue;
        const changes = step.kind === "replace" ? unpackChanges(step.changes) : [step];
        const passed = now && pass(isDone ? inverse(changes) : changes, now);
        now = passed?.other ?? null;
        if (!passed) steps.splice(steps.indexOf(step), 1);
        else if (step.kind === "replace") step.changes = packChanges(changes.map((each, k) => ({ ...each, at: each.at + passed.shifts[k] })));
        else step.at += passed.shifts[0];
      }
    }
  }

  /**
   * Drop a step that can't be undone or redone. Its other half alone would double or lose text.
   * @param {any} step
   */
  drop(step) {
    for (const steps of [this.done, this.undone]) if (steps.at(-1) === step) steps.pop();
  }
}

/** Whether a step continues the typing of the previous one. */
const isTypedOn = (last, step) =>
  last.kind === "text" && step.kind === "text" && last.place === step.place && !step.removed && step.added.length === 1 &&
  !last.removed && last.at + last.added.length === step.at && !last.added.endsWith("\n") &&
  (last.added.length < WORDS || !/\s$/.test(last.added));
