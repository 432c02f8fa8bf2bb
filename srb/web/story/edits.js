// @ts-check
// What was done, one step behind the other, so that it can be undone and done again; and how two texts differ. Pure.
//
// A step is {kind: "text", place, at, removed, added, marks, by}, where `marks` are those of `removed` and `by` is that of `added`; {kind: "go", from, to, kept},
// where from and to are {current, shown} and `kept` a node that was kept by it; {kind: "discard", node}, or "restore"; or
// {kind: "story", id}, which opens another story and stays where it is.

const MOST = 200; // steps
const WORDS = 20; // letters; a step of typing ends with the word that has got so far

// How many letters two texts have in common, at their beginning, or at their end. Halving compares whole stretches at once.
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

// The one change that makes a text of another: {at, removed, added}. end: where what was added ends, if that is known, as
// where two equal letters stand beside each other it isn't.
export function change(before, after, end = after.length) {
  const rest = after.length - end;
  const isEnd = rest <= before.length && tail(before, rest) === after.slice(end);
  const [a, b] = isEnd ? [head(before, before.length - rest), head(after, end)] : [before, after];
  const at = common(a, b, head);
  const same = isEnd ? rest : common(before.slice(at), after.slice(at), tail);
  return { at, removed: before.slice(at, before.length - same), added: after.slice(at, after.length - same) };
}

export class Steps {
  #isOpen = false; // whether the last step may become longer

  constructor({ done = [], undone = [] } = {}) {
    this.done = done;
    this.undone = undone;
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

  // Another story is opened from here.
  leave(id) {
    this.undone = [{ kind: "story", id }];
  }

  // What is typed next is a step of its own.
  close() {
    this.#isOpen = false;
  }

  // The step that is to be undone, or done again; null without one.
  undo() {
    return this.#move(this.done, this.undone);
  }

  redo() {
    return this.#move(this.undone, this.done);
  }

  #move(from, to) {
    this.close();
    const step = from.at(-1);
    if (step && step.kind !== "story") to.push(from.pop());
    return step ?? null;
  }

  // What is typed at a place is in the tree, where it has another place, `to` as steps have it: all that was typed, and the last time
  // that one was there.
  rename(from, to) {
    for (const step of [...this.done, ...this.undone]) if (step.kind === "text" && step.place === from) step.place = to.current;
    for (const [steps, arrival, start] of /** @type {[any[], string, string][]} */ ([[this.done, "to", "from"], [this.undone, "from", "to"]]))
      for (const step of steps.filter(({ kind }) => kind === "go").toReversed()) {
        const [hasLeft, hasCome] = [step[start], step[arrival]].map(({ current }) => current === from);
        if (hasLeft) step[start] = to;
        if (hasCome) step[arrival] = to;
        if (hasCome && !hasLeft) break; // else only what is shown there is another
      }
  }

  // A step that can't be taken back, or not again, is none any more: its other half alone would double or lose what was typed.
  drop(step) {
    for (const steps of [this.done, this.undone]) if (steps.at(-1) === step) steps.pop();
  }
}

// Whether a step is more of the typing of the one before.
const isTypedOn = (last, step) =>
  last.kind === "text" && step.kind === "text" && last.place === step.place && !step.removed && step.added.length === 1 &&
  !last.removed && last.at + last.added.length === step.at && !last.added.endsWith("\n") &&
  (last.added.length < WORDS || !/\s$/.test(last.added));
