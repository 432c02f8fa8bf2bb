// What was typed: drafts.js, saving.js, count.js.

import assert from "node:assert/strict";
import { test } from "node:test";
import { SaveQueue } from "../../srb/web/lib/save_queue.js";
import { Drafts, moveDrafts, moveMarks } from "../../srb/web/story/drafts.js";
import { ROOT } from "../../srb/web/story/tree.js";

test("a draft stays at its place", () => {
  const drafts = new Drafts();
  assert.equal(drafts.go("a", "Once"), "Once");
  drafts.type("Once upon");
  assert.equal(drafts.go("b", "Twice"), "Twice");
  drafts.type("");
  assert.equal(drafts.go("a", "Once"), "Once upon");
  assert.equal(drafts.go("b", "Twice"), "", "what was cleared is a draft, too");
  assert.deepEqual(drafts.all, [["a", "Once upon"], ["b", ""]]);
});

test("text that equals the tree is no draft", () => {
  const drafts = new Drafts([["a", "Once upon"]]);
  drafts.go("a", "Once");
  drafts.type("Once");
  assert.deepEqual(drafts.all, []);
  assert.deepEqual(drafts.changes(), ["a"]);
  assert.deepEqual(drafts.changes(), []);
});

test("a draft is settled, and what was typed since is a draft", () => {
  const drafts = new Drafts();
  drafts.go("a", "");
  drafts.type("Once");
  drafts.settle("a", "Once");
  drafts.type("Once"); // the box still has it
  assert.deepEqual(drafts.all, []);
  drafts.go("b", "Once");
  drafts.go("a", "");
  drafts.type("Once upon");
  drafts.settle("a", "Once");
  assert.deepEqual(drafts.all, [["a", "Once upon"]]);
});

test("drafts move with their nodes", () => {
  const ids = new Map([[ROOT, ROOT], ["7", "x"]]);
  assert.deepEqual(moveDrafts([["7", "Once upon"], [ROOT, "Once"]], ids), [["x", "Once upon"], [ROOT, "Once"]]);
  assert.deepEqual(moveMarks({ 7: "w4m5", [ROOT]: "m4" }, ids), { x: "w4m5", [ROOT]: "m4" });
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

test("a stored draft is this page's if it was the last one when another was stored, however much is typed since", () => {
  const drafts = new Drafts();
  const typed = Array.from({ length: 50 }, (_, k) => "x".repeat(k + 1));
  const stored = typed.map((text) => {
    drafts.put("root", text);
    return drafts.storing(["root"]);
  });
  assert.deepEqual(stored.map(({ drafts: [[, text]] }) => text), typed);
  assert.ok(typed.slice(0, -1).every((text, k) => stored[k + 1].knows("root", text)));
  assert.ok(!stored[1].knows("root", "y"));
});

test("a draft of another tab is known by what this page has stored lately, and isn't saved again", () => {
  const drafts = new Drafts([["root", "Once"]]);
  drafts.put("root", "Once upon");
  drafts.storing(["root"]);
  assert.deepEqual(["Once", "Once upon", "Twice"].map((text) => drafts.knows("root", text)), [true, true, false]);
  assert.deepEqual(drafts.changes(), ["root"]);
  drafts.follow("root", "Twice", "w5");
  assert.deepEqual([drafts.at("root"), drafts.marks("root"), drafts.knows("root", "Twice")], ["Twice", "w5", true]);
  assert.deepEqual(drafts.changes(), []);
});
