// @ts-check
// The undo history.
//
// A step is {kind: "text", place, changes, marks}, or "replace": the `changes` that undo it, or that redo it once it is
// undone, as CodeMirror's JSON, and the marks of what these insert; {kind: "go", from, to, kept}, where from and to are
// {current, shown} and `kept` is the node that was kept; or {kind: "discard", node}, or "restore".

import { ChangeSet } from "../vendor/codemirror.js";

const MOST = 200; // steps
const WORDS = 20; // characters after which a step of typing ends with the word

/**
 * @typedef {{ at: number, removed: string, added: string }} Edit a part of a change
 * @typedef {{ at: number, added: string, before?: Typed }} Typed by several keys; `before` it, if a composed letter may
 *   continue that
 */

const compose = (step, earlier) => ChangeSet.fromJSON(step.changes).compose(ChangeSet.fromJSON(earlier.changes)).toJSON();

export class Steps {
  #open = /** @type {Typed | undefined} */ (undefined); // what was typed, if typing can extend the last step

  constructor({ done = [], undone = [] } = {}) {
    // srb 0.1.0 knew the text of a step only.
    const known = (steps) => steps.slice(steps.findLastIndex(({ kind, changes }) => ["text", "replace"].includes(kind) && !changes?.length) + 1);
    this.done = known(done);
    this.undone = known(undone);
  }

  get all() {
    return { done: this.done, undone: this.undone };
  }

  /**
   * @param {any} step
   * @param {{ edits?: Edit[], composing?: "start" | "on" }} [typed] what it changes, and what an input method does
   */
  push(step, { edits: [edit, ...others] = [], composing } = {}) {
    this.undone = [];
    if (composing !== "on") this.#joinLetter();
    const open = this.#open;
    const last = this.done.at(-1);
    const isAlone = !edit || others.length > 0;
    const isOn = Boolean(open) && !isAlone && last.place === step.place && (composing === "on" ? isWithin(open, edit) : isTypedOn(/** @type {Typed} */ (open), edit));
    if (open && isOn && composing !== "start") {
      last.changes = compose(step, last);
      const end = edit.at - open.at;
      this.#open = { ...open, added: open.added.slice(0, end) + edit.added + open.added.slice(end + edit.removed.length) };
    } else {
      this.done = [...this.done, step].slice(-MOST);
      this.#open = isAlone ? undefined : { at: edit.at, added: edit.added, before: isOn ? open : undefined };
    }
  }

  /** Join a letter of a dead key, which is composed, with what was typed before it. */
  #joinLetter() {
    const { before, added } = this.#open ?? {};
    if (!before || added?.length !== 1) return;
    const letter = this.done.pop();
    const word = this.done.at(-1);
    word.changes = compose(letter, word);
    this.#open = { ...before, added: before.added + added };
  }

  /** Start a new step with the next key. */
  close() {
    this.#open = undefined;
  }

  /** Return the step to undo; null without one. */
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

  /** Move steps from a draft's place to the node that has its text now: all typing there, and the last arrival. */
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
   * Move the steps of a place after somebody else has changed its text. What both have removed is left out of them.
   * @param {string} place
   * @param {ChangeSet | null} changes null: they are unknown, and all steps of the place go
   */
  follow(place, changes) {
    this.close();
    const isHere = (step) => step.place === place;
    for (const name of /** @type {const} */ (["done", "undone"])) {
      let now = changes?.desc;
      const moved = new Map();
      for (const step of this[name].toReversed().filter(isHere)) {
        const own = ChangeSet.fromJSON(step.changes);
        if (own.length !== now?.length) break; // and those before it
        moved.set(step, own.map(now));
        now = now.mapDesc(own, true);
      }
      this[name] = this[name].filter((step) => !isHere(step) || (moved.has(step) && !moved.get(step).empty));
      for (const [step, own] of moved) step.changes = own.toJSON();
    }
  }

  /** Drop a step that can't be undone or redone. Its other half alone would double or lose text. */
  drop(step) {
    for (const steps of [this.done, this.undone]) if (steps.at(-1) === step) steps.pop();
  }
}

/** Whether an edit is within what was typed. */
const isWithin = (open, { at, removed }) => at >= open.at && at + removed.length <= open.at + open.added.length;

/** Whether a key continues what was typed. */
const isTypedOn = ({ at, added }, next) =>
  !next.removed && next.added.length === 1 && next.at === at + added.length && !added.endsWith("\n") && (added.length < WORDS || !/\s$/.test(added));
