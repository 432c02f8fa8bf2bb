// What was typed: drafts.js, saving.js, count.js.

import assert from "node:assert/strict";
import { test } from "node:test";
import { SaveQueue } from "../../srb/web/lib/save_queue.js";
import { Drafts, moveDrafts } from "../../srb/web/story/drafts.js";
import { ROOT } from "../../srb/web/story/tree.js";
import { ChangeSet } from "../../srb/web/vendor/codemirror.js";

const TREE = { a: "Once", b: "Twice", [ROOT]: "" };
const inTree = (place) => ({ text: TREE[place], marks: "" });

test("a draft stays at its place", () => {
  const drafts = new Drafts([], inTree);
  assert.equal(drafts.go("a").text, "Once");
  drafts.type("Once upon");
  assert.equal(drafts.go("b").text, "Twice");
  drafts.type("");
  assert.equal(drafts.go("a").text, "Once upon");
  assert.equal(drafts.go("b").text, "", "what was cleared is a draft, too");
  assert.deepEqual(drafts.all, [["a", "Once upon"], ["b", ""]]);
});

test("text that equals the tree is no draft", () => {
  const drafts = new Drafts([["a", { text: "Once upon" }]], inTree);
  drafts.go("a");
  drafts.type("Once");
  assert.deepEqual(drafts.all, []);
  assert.deepEqual(drafts.changes(), ["a"]);
  assert.deepEqual(drafts.changes(), []);
});

test("a draft is settled, and what was typed since is a draft", () => {
  const drafts = new Drafts([], inTree);
  drafts.go(ROOT);
  drafts.type("Once");
  drafts.settle(ROOT, "Once", "n");
  drafts.type("Once"); // the box still has it
  assert.deepEqual(drafts.all, []);
  drafts.go("b");
  drafts.go(ROOT);
  drafts.type("Once upon");
  drafts.settle(ROOT, "Once", "n");
  assert.deepEqual(drafts.all, [[ROOT, "Once upon"]]);
});

test("drafts move with their nodes", () => {
  const ids = new Map([[ROOT, ROOT], ["7", "x"]]);
  const moved = moveDrafts([["7", { text: "Once upon", marks: "w4m5" }], ["8", { into: "9" }], [ROOT, { text: "Once" }]], ids);
  assert.deepEqual(moved, [["x", { text: "Once upon", marks: "w4m5" }], [ROOT, { text: "Once" }]]);
});

// A Saving, what it wrote, and what it said; `broken` has it fail, and `pass` lets the time of a pause pass.
function saving() {
  const all = { written: [], said: [], pauses: [], broken: false };
  const write = async (items) => {
    if (all.broken) throw new Error("full");
    all.written.push(items.join());
  };
  const later = (run, pause) => all.pauses.push(pause) && (all.pass = run);
  const said = { failed: (error) => all.said.push(error.message), recovered: () => all.said.push("recovered") };
  return Object.assign(all, { saving: new SaveQueue(write, { ...said, later }) });
}

test("a failed save is reported, and tried again until it succeeds", async () => {
  const all = saving();
  all.broken = true;
  await all.saving.save("a", "b");
  await all.pass();
  assert.deepEqual([all.said, all.pauses, all.saving.hasUnsaved], [["full", "full"], [1000, 2000], true]);
  all.broken = false;
  await all.pass();
  assert.deepEqual([all.written, all.said, all.saving.hasUnsaved], [["a,b"], ["full", "full", "recovered"], false]);
  await all.pass();
  assert.deepEqual(all.written, ["a,b"], "there is nothing left to keep");
});

test("a later save replaces a failed one", async () => {
  const all = saving();
  all.broken = true;
  await all.saving.save("a", "b");
  all.broken = false;
  await all.saving.save("a");
  await all.pass();
  assert.deepEqual(all.written, ["a", "b"]);
  assert.deepEqual(all.said, ["full", "recovered"]);
});

test("pauses are limited", async () => {
  const all = saving();
  all.broken = true;
  await all.saving.save("a");
  for (let k = 0; k < 9; k++) await all.pass();
  assert.equal(Math.max(...all.pauses), 10_000);
});

test("a late failure of an old save is ignored", async () => {
  const all = saving();
  let fail;
  all.saving.write = () => new Promise((_, reject) => (fail = reject));
  const old = all.saving.save("a");
  all.saving.write = async () => {};
  await all.saving.save("a");
  fail(new Error("late"));
  await old;
  assert.deepEqual([all.said, all.pauses], [[], []]);
});

/** Drafts of a story where nodes have these texts. */
const draftsOf = (stored, texts = {}) => new Drafts(stored, (place) => ({ text: texts[place] ?? "", marks: "w".repeat((texts[place] ?? "").length) }));

const typed = (text, marks = `w${text.length}`) => ({ text, marks });

test("what two have typed at a place is merged, with who wrote it", () => {
  const drafts = draftsOf([["root", typed("Once upon")]]);
  const { changes } = drafts.meet("root", typed("Once"), typed("Twice. Once", "m7w4"));
  assert.deepEqual([drafts.get("root"), changes.get("root").toJSON()], [{ text: "Twice. Once upon", marks: "m7w9" }, [[0, "Twice. "], 9]]);
  assert.equal(drafts.meet("root", typed("Twice. Once"), drafts.get("root")), null);
  drafts.meet("root", drafts.get("root"), undefined);
  assert.equal(drafts.get("root"), undefined);
});

test("what one types while the other generates goes to the node that has the text then", () => {
  const texts = { root: "", n: "Once" };
  const typing = draftsOf([["root", typed("Once x")], ["n", typed("y Once")]], texts);
  const met = typing.meet("root", typed("Once"), { into: "n" });
  assert.deepEqual([met.into, typing.get("root"), typing.at("n")], ["n", { into: "n" }, "y Once x"]);
  assert.deepEqual(met.changes.get("root").toJSON(), [[0, "y "], 6]);
  const other = draftsOf([["root", typed("Twice")]], texts);
  assert.equal(other.meet("root", undefined, { into: "n" }), null, "it is another beginning");
  const generating = draftsOf([["root", typed("Once")]], texts);
  generating.settle("root", "Once", "n");
  assert.equal(generating.meet("root", typed("Once"), typed("Once x")).into, undefined);
  assert.deepEqual([generating.get("root"), generating.at("n")], [{ into: "n" }, "Once x"]);
  const back = draftsOf([["root", { into: "n" }]], texts);
  const begun = back.meet("root", { into: "n" }, typed("x"));
  assert.deepEqual([back.at("root"), begun.changes.get("root").toJSON()], ["x", [[0, "x"]]], "at the place that it has left, one begins again");
});

test("a stored draft has its changes, which the difference of two texts doesn't show", () => {
  for (const [from, both] of [[0, "xab"], [1, "axb"]]) {
    const [here, there] = [draftsOf([["root", typed("aa")]]), draftsOf([["root", typed("aa")]])];
    here.put("root", "axa", () => "w3", ChangeSet.of({ from: 1, insert: "x" }, 2));
    there.put("root", "a", () => "w1", ChangeSet.of({ from, to: from + 1 }, 2));
    const first = there.store("root", typed("aa"));
    there.put("root", "ab", () => "w2", ChangeSet.of({ from: 1, insert: "b" }, 1));
    here.meet("root", typed("aa"), there.store("root", first));
    assert.equal(here.at("root"), both);
    assert.deepEqual(here.typed("root").map((each) => each.toJSON()), [from ? [1, [0, "x"], 1] : [[0, "x"], 2]]);
  }
});
