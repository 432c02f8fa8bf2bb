// What was done to a text, and who wrote it: edits.js, authorship.js.

import assert from "node:assert/strict";
import { test } from "node:test";
import { ownMark, packMarks, runs, unpackMarks } from "../../srb/web/story/authorship.js";
import { Steps } from "../../srb/web/story/edits.js";
import { change } from "../../srb/web/story/text_merge.js";
import { applied, difference } from "../../srb/web/story/text_merge.js";
import { ChangeSet } from "../../srb/web/vendor/codemirror.js";

test("the change between two texts is the smallest one", () => {
  assert.deepEqual(change("one two", "one, two"), { from: 3, to: 3, insert: "," });
  assert.deepEqual(change("aa", "aaa"), { from: 2, to: 2, insert: "a" });
  assert.deepEqual(change("one two", "one too"), { from: 5, to: 6, insert: "o" });
  assert.deepEqual(change("abc", ""), { from: 0, to: 3, insert: "" });
  assert.deepEqual(change("", ""), { from: 0, to: 0, insert: "" });
});

/** A text that is changed in steps, as the page does it. */
class Text {
  steps = new Steps();
  constructor(value = "") {
    this.value = value;
  }

  /** Replace a part of the text. */
  put(at, to, added, { composing, others = [] } = {}) {
    const changes = ChangeSet.of([{ from: at, to, insert: added }, ...others], this.value.length);
    const step = { kind: "text", place: "a", changes: this.#inverse(changes), marks: "" };
    this.steps.push(step, { edits: [{ at, removed: this.value.slice(at, to), added }, ...others], composing });
    this.value = applied(this.value, changes);
  }

  /** Press keys, one by one. */
  type(keys, at = this.value.length) {
    [...keys].forEach((key, k) => this.put(at + k, at + k, key));
  }

  /** Undo or redo a step. */
  again(name) {
    const step = this.steps[name]();
    if (!step) return null;
    const changes = ChangeSet.fromJSON(step.changes);
    step.changes = this.#inverse(changes);
    return (this.value = applied(this.value, changes));
  }

  /** Change the text elsewhere. */
  follow(after) {
    this.steps.follow("a", difference(this.value, after));
    this.value = after;
  }

  all(name) {
    const found = [];
    for (let text; (text = this.again(name)) !== null; ) found.push(text);
    return found;
  }

  /** The changes that take these back. */
  #inverse(changes) {
    const back = [];
    changes.iterChanges((from, to, at, end) => back.push({ from: at, to: end, insert: this.value.slice(from, to) }));
    return ChangeSet.of(back, changes.newLength, "\n").toJSON();
  }
}

test("typing is undone a few words at a time, and there are 200 steps", () => {
  const text = new Text();
  text.type("The old lighthouse keeper had one rule");
  assert.equal(text.again("undo"), "The old lighthouse keeper ");
  assert.equal(text.again("redo"), "The old lighthouse keeper had one rule");
  assert.equal(text.again("redo"), null);
  text.type("x");
  assert.equal(text.steps.done.length, 3, "what is typed after an undo is a step of its own");
  text.again("undo");
  text.again("undo");
  text.type("x", 5);
  assert.deepEqual([text.steps.undone.length, text.steps.done.length], [0, 2], "who does something else can't redo");
  for (let k = 0; k < 300; k++) text.steps.push({ kind: "discard", node: `${k}` });
  assert.deepEqual([text.steps.done.length, text.steps.done.at(-1).node], [200, "299"]);
});

test("a letter of a dead key belongs to its word, and what an input method composes is one step", () => {
  const text = new Text();
  text.type("Un caf");
  text.put(6, 6, "´", { composing: "start" });
  text.put(6, 7, "é", { composing: "on" });
  text.type(" ");
  text.put(8, 8, "n", { composing: "start" });
  text.put(8, 9, "日", { composing: "on" });
  text.put(8, 9, "日本", { composing: "on" });
  text.type(".");
  assert.equal(text.value, "Un café 日本.");
  assert.deepEqual(text.all("undo"), ["Un café ", ""]);
  assert.deepEqual(text.all("redo"), ["Un café ", "Un café 日本."]);
});

test("steps of typing move into the tree, and those of srb 0.1.0 are dropped", () => {
  const at = (current) => ({ current, shown: [current] });
  const typed = (steps, place) => steps.push({ kind: "text", place, changes: [], marks: "" });
  const steps = new Steps({ done: [{ kind: "go", from: at("a"), to: at("b") }, { kind: "go", from: at("b"), to: at("a") }] });
  typed(steps, "a");
  steps.rename("a", at("c"));
  assert.deepEqual(steps.all.done.map(({ from, to, place }) => place ?? `${from.current}${to.current}`), ["ab", "bc", "c"]);
  // Also what was typed there before one was elsewhere, and before only other alternatives were shown.
  const more = { ...at("a"), shown: ["more", "a"] };
  const later = new Steps();
  typed(later, "a");
  for (const [from, to] of [["a", "b"], ["b", "a"]]) later.push({ kind: "go", from: at(from), to: at(to) });
  typed(later, "a");
  later.push({ kind: "go", from: at("a"), to: more });
  typed(later, "a");
  later.rename("a", at("c"));
  assert.deepEqual(later.all.done.map(({ from, to, place }) => place ?? `${from.current}${to.current}`), ["c", "ab", "bc", "c", "cc", "c"]);
  const step = later.undo();
  later.drop(step);
  assert.deepEqual([later.redo(), later.all.done.length], [null, 5], "a step that can't be taken back isn't done again");
  const known = { kind: "discard", node: "n" };
  const older = new Steps({ done: [known, { kind: "text", place: "a", at: 1, removed: "", added: "x" }, known] });
  assert.deepEqual(older.all, { done: [known], undone: [] }, "nor what was before them");
});

test("several changes are one step", () => {
  const text = new Text("a lamp, the Lamp, a lamp");
  text.put(2, 6, "light", { others: [{ from: 12, to: 16, insert: "light" }, { from: 20, to: 24, insert: "light" }] });
  assert.equal(text.value, "a light, the light, a light");
  assert.equal(text.again("undo"), "a lamp, the Lamp, a lamp");
  assert.equal(text.again("redo"), "a light, the light, a light");
});

test("typing into the model's text changes it", () => {
  assert.deepEqual([ownMark("m", "", ""), ownMark("m", "", "m"), ownMark("w", "mw", "m"), ownMark("w", "", "m")], ["w", "c", "c", "w"]);
  assert.equal(packMarks("wwwmmc"), "w3m2c1");
  assert.deepEqual(["w3m2c1", undefined, "w9", "nonsense"].map((each) => unpackMarks(each, 7)), ["wwwmmcw", "wwwwwww", "wwwwwww", "wwwwwww"]);
  assert.deepEqual(runs("wwm"), [["w", 0, 2], ["m", 2, 3]]);
});

/** Type these words at the end of a text, one step each. */
function wordByWord(value, ...words) {
  const text = new Text(value);
  for (const added of words) {
    text.put(text.value.length, text.value.length, added);
    text.steps.close();
  }
  return text;
}

test("steps stay right when another tab changes the text before, between and after them", () => {
  const text = wordByWord("Once", " one", " two", " three");
  text.again("undo");
  text.put(1, 2, "NN", { others: [{ from: 6, to: 7, insert: "NN" }] });
  assert.equal(text.value, "ONNce oNNe two");
  text.follow("Say: ONNce oNNe two");
  text.follow("Say: ONNce oNNe, two");
  text.follow("Say: ONNce oNNe, two!");
  text.steps.follow("b", difference("", "elsewhere"));
  assert.equal(text.all("undo").at(-1), "Say: Once,!");
  assert.equal(text.all("redo").at(-1), "Say: ONNce oNNe, two!");
});

test("undone steps move, too, and what both have removed isn't removed again", () => {
  const text = wordByWord("Once", " one", " two", " three");
  text.again("undo");
  text.again("undo");
  text.follow("So: Once one");
  assert.equal(text.all("redo").at(-1), "So: Once one two three");
  text.follow("So: Once one three");
  assert.equal(text.all("undo").at(-1), "So: Once");
  text.follow("Once upon");
  assert.equal(text.all("redo").at(-1), "Once upon one three");
  text.steps.follow("a", null);
  assert.deepEqual([text.again("undo"), text.again("redo")], [null, null]);
});

test("random edits of two are undone without a letter of the other", () => {
  let random = 7;
  const next = (most) => (random = (random * 16807) % 2147483647) % most;
  for (let round = 0; round < 200; round++) {
    const text = new Text("abcdefghij");
    for (let k = 0; k < 12; k++) {
      const at = next(text.value.length + 1);
      const to = /^[a-z]/.test(text.value.slice(at)) ? at + next(2) : at; // the other one's letters stay
      const letter = String.fromCharCode((k % 2 ? 0x4e00 : 0x3041) + k);
      if (k % 2) text.follow(text.value.slice(0, at) + letter + text.value.slice(at));
      else text.put(at, to, letter);
      text.steps.close();
    }
    const now = text.value;
    const theirs = (value) => value.replace(/[^\u4e00-\u4eff]/g, "");
    for (const name of ["undo", "redo"]) for (const value of text.all(name)) assert.equal([...theirs(value)].sort().join(""), [...theirs(now)].sort().join(""));
    assert.equal(text.value, now);
  }
});
