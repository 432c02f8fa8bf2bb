// What was done to a text, and who wrote it: edits.js, marks.js.

import assert from "node:assert/strict";
import { test } from "node:test";
import { applyEdit, applyEdits, packMarks, runs, unpackMarks } from "../../srb/web/story/authorship.js";
import { change, difference, inverse, packChanges, Steps, unpackChanges } from "../../srb/web/story/edits.js";

test("the cursor decides where a change is, else it is the smallest one", () => {
  assert.deepEqual(change("aa", "aaa", 1), { at: 0, removed: "", added: "a" });
  assert.deepEqual(change("aa", "aaa"), { at: 2, removed: "", added: "a" });
  assert.deepEqual(difference("one two", "one, two"), { at: 3, removed: "", added: "," });
  assert.deepEqual(change("one two", "one too", 0), { at: 5, removed: "w", added: "o" });
  assert.deepEqual(change("abc", "", 0), { at: 0, removed: "abc", added: "" });
  assert.deepEqual(change("", "", 0), { at: 0, removed: "", added: "" });
  let random = 7;
  const next = (most) => (random = (random * 16807) % 2147483647) % most;
  const word = () => "ab".repeat(next(4)).slice(next(2));
  for (let k = 0; k < 300; k++) {
    const [start, old, now, end] = [word(), word(), word(), word()];
    const [before, after] = [start + old + end, start + now + end];
    for (const { at, removed, added } of [change(before, after), change(before, after, (start + now).length)]) {
      assert.equal(before.slice(0, at) + removed + before.slice(at + removed.length), before);
      assert.equal(before.slice(0, at) + added + before.slice(at + removed.length), after);
    }
  }
});

const typed = (steps, text, at = 0) => [...text].forEach((added, k) => steps.push({ kind: "text", place: "a", at: at + k, removed: "", added }));

test("typing is undone a few words at a time, and there are 200 steps", () => {
  const steps = new Steps();
  typed(steps, "The old lighthouse keeper had one rule");
  assert.deepEqual(steps.all.done.map((each) => each.added), ["The old lighthouse keeper ", "had one rule"]);
  assert.equal(steps.undo().added, "had one rule");
  assert.equal(steps.redo().added, "had one rule");
  assert.equal(steps.redo(), null);
  typed(steps, "x", 38);
  assert.equal(steps.all.done.length, 3, "what is typed after an undo is a step of its own");
  steps.undo();
  steps.undo();
  typed(steps, "x", 5);
  assert.deepEqual([steps.all.undone.length, steps.all.done.length], [0, 2], "who does something else can't redo");
  for (let k = 0; k < 300; k++) steps.push({ kind: "discard", node: `${k}` });
  assert.deepEqual([steps.all.done.length, steps.all.done.at(-1).node], [200, "299"]);
});

test("steps of typing move into the tree, and steps to other stories are dropped", () => {
  const at = (current) => ({ current, shown: [current] });
  const steps = new Steps({ done: [{ kind: "go", from: at("a"), to: at("b") }, { kind: "go", from: at("b"), to: at("a") }] });
  typed(steps, "x");
  steps.rename("a", at("c"));
  assert.deepEqual(steps.all.done.map(({ from, to, place }) => place ?? `${from.current}${to.current}`), ["ab", "bc", "c"]);
  // Also what was typed there before one was elsewhere, and before only other alternatives were shown.
  const more = { ...at("a"), shown: ["more", "a"] };
  const later = new Steps();
  typed(later, "abc");
  for (const [from, to] of [["a", "b"], ["b", "a"]]) later.push({ kind: "go", from: at(from), to: at(to) });
  typed(later, "d", 3);
  later.push({ kind: "go", from: at("a"), to: more });
  typed(later, "e", 4);
  later.rename("a", at("c"));
  assert.deepEqual(later.all.done.map(({ from, to, place }) => place ?? `${from.current}${to.current}`), ["c", "ab", "bc", "c", "cc", "c"]);
  const step = later.undo();
  later.drop(step);
  assert.deepEqual([later.redo(), later.all.done.length], [null, 5], "a step that can't be taken back isn't done again");
  const older = new Steps({ done: [{ kind: "story", id: "s" }], undone: [{ kind: "story", id: "t" }] });
  assert.deepEqual([older.undo(), older.redo()], [null, null], "older pages went on in another story");
});

test("several changes are one step, and their inverse undoes them", () => {
  const text = "a lamp, the Lamp, a lamp";
  const changes = [[2, "lamp", "wwmm"], [12, "Lamp", "wwww"], [20, "lamp", "wwmm"]].map(([at, removed, marks]) => ({ at, removed, added: "light", marks }));
  const apply = (to, all) => all.toReversed().reduce((now, { at, removed, added }) => now.slice(0, at) + added + now.slice(at + removed.length), to);
  const after = apply(text, changes);
  assert.equal(after, "a light, the light, a light");
  assert.equal(apply(after, inverse(changes)), text);
  assert.deepEqual(inverse(changes).map(({ marks }) => marks), ["wwmm", "wwww", "wwmm"]);
  const packed = packChanges(changes);
  assert.deepEqual(packed.map(({ at }) => at), [[2, 20], [12]]);
  assert.deepEqual(unpackChanges(packed), changes);
  assert.equal(applyEdits("wwmmww", [{ at: 1, removed: "x", added: "ab" }, { at: 3, removed: "x", added: "" }]), "wwwmww");
  const steps = new Steps({ done: [{ kind: "replace", place: "a", changes: packed }] });
  steps.rename("a", { current: "b", shown: [] });
  assert.equal(steps.undo().place, "b");
});

test("typing into the model's text changes it", () => {
  const change = (at, removed, added) => ({ at, removed, added });
  assert.equal(applyEdit("wwmm", change(4, "", "ab")), "wwmmww");
  assert.equal(applyEdit("wwmm", change(3, "", "ab")), "wwmccm");
  assert.equal(applyEdit("wwmm", change(1, "xx", "a")), "wcm");
  assert.equal(applyEdit("wwmm", change(2, "", "ab")), "wwwwmm");
  assert.equal(applyEdit("wm", change(1, "x", "ab"), "mm"), "wmm");
  assert.equal(packMarks("wwwmmc"), "w3m2c1");
  assert.deepEqual(["w3m2c1", undefined, "w9", "nonsense"].map((each) => unpackMarks(each, 7)), ["wwwmmcw", "wwwwwww", "wwwwwww", "wwwwwww"]);
  assert.deepEqual(runs("wwm"), [["w", 0, 2], ["m", 2, 3]]);
});

/** Type these words at the end of a text, one step each. Undone ones last. */
function wordByWord(text, ...words) {
  const steps = new Steps();
  for (const added of words) {
    steps.push({ kind: "text", place: "a", at: text.length, removed: "", added, marks: "" });
    steps.close();
    text += added;
  }
  return { steps, text };
}

function moveAll(steps, text, isBack) {
  for (let step; (step = isBack ? steps.undo() : steps.redo()); ) {
    const changes = step.kind === "replace" ? unpackChanges(step.changes) : [step];
    for (const { at, removed, added } of (isBack ? inverse(changes) : changes).toReversed()) {
      assert.equal(text.slice(at, at + removed.length), removed);
      text = text.slice(0, at) + added + text.slice(at + removed.length);
    }
  }
  return text;
}

test("steps stay right when another tab changes the text before, between and after them", () => {
  const { steps, text } = wordByWord("Once", " one", " two", " three");
  steps.undo();
  steps.push({ kind: "replace", place: "a", changes: packChanges([{ at: 1, removed: "n", added: "NN" }, { at: 6, removed: "n", added: "NN" }]) });
  assert.equal(text, "Once one two three");
  let now = "ONNce oNNe two";
  const follow = (after) => {
    steps.follow("a", difference(now, after));
    now = after;
  };
  follow("Say: ONNce oNNe two");
  follow("Say: ONNce oNNe, two");
  follow("Say: ONNce oNNe, two!");
  steps.follow("b", { at: 0, removed: "", added: "elsewhere" });
  const back = moveAll(steps, now, true);
  assert.equal(back, "Say: Once,!");
  assert.equal(moveAll(steps, back, false), now);
});

test("undone steps move, too, and those at the changed characters go with the ones before them", () => {
  const { steps } = wordByWord("Once", " one", " two", " three");
  steps.undo();
  steps.undo();
  steps.follow("a", difference("Once one", "So: Once one"));
  assert.equal(moveAll(steps, "So: Once one", false), "So: Once one two three");
  steps.follow("a", difference("So: Once one two three", "So: Once one TWO three"));
  assert.deepEqual(steps.done.map(({ added }) => added), [" three"]);
  assert.equal(moveAll(steps, "So: Once one TWO three", true), "So: Once one TWO");
});
