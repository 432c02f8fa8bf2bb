// What two tabs know of each other's saves: browser_store.js.

import assert from "node:assert/strict";
import { test } from "node:test";
import { PageVersions } from "../../srb/web/story/browser_store.js";

/** Two tabs, and what the browser has stored. */
function tabs() {
  const all = { stored: { note: "" } };
  const [a, b] = [new PageVersions(), new PageVersions()];
  const save = (tab, note) => {
    const before = all.stored;
    const { page, isKnown } = tab.next("s", { note });
    all.stored = page;
    return isKnown(before) ? "known" : tab.hear("s", before).note;
  };
  const read = (tab) => tab.hear("s", all.stored).note;
  return Object.assign(all, { a, b, save, read });
}

test("a tab knows its own saves and what it has read", () => {
  const { a, b, save, read } = tabs();
  read(a);
  read(b);
  assert.deepEqual([save(a, "1"), save(a, "2")], ["known", "known"]);
  assert.equal(read(b), "", "the last one that b had seen, too");
  assert.equal(save(b, "3"), "known");
  assert.equal(read(a), "2");
  assert.equal(save(a, "4"), "known");
});

test("a tab that was frozen for a day changes what it knew, and doesn't undo the rest", () => {
  const { a, b, save, read } = tabs();
  read(a);
  read(b);
  for (let k = 1; k <= 100; k++) save(a, String(k));
  read(b);
  for (let k = 101; k <= 150; k++) save(a, String(k));
  assert.equal(save(b, "late"), "100");
  assert.equal(save(b, "later"), "known");
  assert.equal(read(a), "150", "b has read it meanwhile");
});

test("if only the frozen tab's page is found, what both know is found", () => {
  const { a, b, save, read } = tabs();
  read(a);
  save(a, "1");
  read(b);
  save(a, "2");
  const { page } = b.next("s", { note: "late" }); // and then it is closed
  assert.equal(a.hear("s", page).note, "1");
});

test("nothing is stored if nothing has changed", () => {
  const { a } = tabs();
  assert.equal(a.isLast("s", { note: "" }), false);
  const done = [{ changes: [3, [1]] }];
  a.next("s", { note: "", steps: { done } });
  assert.equal(a.isLast("s", { note: "", steps: { done } }), true);
  a.fail("s");
  assert.equal(a.isLast("s", { note: "", steps: { done } }), false, "it is tried again");
  a.next("s", { note: "", steps: { done } });
  done[0].changes = [3, [2]]; // typed on
  assert.equal(a.isLast("s", { note: "", steps: { done } }), false);
  assert.equal(a.isLast("s", { note: "1", steps: { done: [{ changes: [3, [1]] }] } }), false);
});
