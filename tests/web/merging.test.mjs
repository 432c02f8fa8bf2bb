// What two tabs or devices have made of the same values: merging.js.

import assert from "node:assert/strict";
import { test } from "node:test";
import { EMPTY_ENTRY, readBackground } from "../../srb/web/story/lorebook.js";
import { merge } from "../../srb/web/story/merging.js";

const entry = (id, text) => ({ ...EMPTY_ENTRY, id, text });
const BASE = readBackground({ memory: "Ada is ninety.", note: "Night.", lore: [entry("a", "Ada limps."), entry("t", "Tom drowned.")] });

test("what each has changed alone is taken", () => {
  const mine = { ...BASE, note: "Day.", lore: [entry("a", "Ada runs."), BASE.lore[1]] };
  const theirs = { ...BASE, memory: "Ada is eighty.", depth: 5, lore: [BASE.lore[0], { ...BASE.lore[1], keys: "Tom" }, entry("n", "The sea.")] };
  const both = { ...mine, memory: "Ada is eighty.", depth: 5, lore: [entry("a", "Ada runs."), { ...BASE.lore[1], keys: "Tom" }, entry("n", "The sea.")] };
  assert.deepEqual(merge(BASE, mine, theirs), both);
  assert.deepEqual(merge(BASE, theirs, mine), both);
  assert.equal(merge(BASE, BASE, theirs), theirs);
  assert.equal(merge(BASE, mine, BASE), mine);
});

test("texts that both have changed are merged, if they are texts", () => {
  const [mine, theirs] = ["Ada, the keeper, is ninety.", "Ada is eighty."].map((memory) => ({ ...BASE, memory, lore: [entry("a", memory), BASE.lore[1]] }));
  const base = { ...BASE, lore: [entry("a", BASE.memory), BASE.lore[1]] };
  const both = "Ada, the keeper, is eighty.";
  for (const merged of [merge(base, mine, theirs), merge(base, theirs, mine)])
    assert.deepEqual([merged.memory, merged.lore[0].text], [both, both]);
  assert.deepEqual(merge({ t: "0.8", n: 1 }, { t: "0.9", n: 2 }, { t: "0.7", n: 3 }, (own) => own), { t: "0.9", n: 2 });
});

test("an entry that one has removed stays if the other has changed it", () => {
  const removed = { ...BASE, lore: [BASE.lore[1]] };
  const changed = { ...BASE, lore: [entry("a", "Ada runs."), BASE.lore[1]] };
  for (const merged of [merge(BASE, removed, changed), merge(BASE, changed, removed)])
    assert.deepEqual(merged.lore.map(({ text }) => text).sort(), ["Ada runs.", "Tom drowned."]);
  assert.deepEqual(merge(BASE, removed, { ...BASE, note: "Day." }).lore, removed.lore);
});

test("turns of a conversation are told apart by their requests", () => {
  const turn = (request, text) => ({ question: "Why?", answers: [{ request, text }], chosen: 0 });
  const base = { conversation: [turn("a", "So.")] };
  const [mine, theirs] = [[turn("a", "So."), turn("b", "Be")], [turn("a", "So."), turn("c", "No.")]].map((conversation) => ({ conversation }));
  assert.deepEqual(merge(base, mine, theirs).conversation.map(({ answers: [{ text }] }) => text), ["So.", "No.", "Be"]);
  const grown = { conversation: [turn("a", "So."), turn("b", "Because.")] };
  const longest = (own, others) => (others.includes(own) ? others : own);
  assert.deepEqual(merge(base, mine, grown, longest).conversation, grown.conversation);
});
