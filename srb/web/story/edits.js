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
