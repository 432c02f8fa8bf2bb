// What two tabs or devices have made of the same values: merging.js.

import assert from "node:assert/strict";
import { test } from "node:test";
import { EMPTY_ENTRY, readBackground } from "../../srb/web/story/lorebook.js";
import { merge, textAt } from "../../srb/web/story/merging.js";

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

test("both texts stand if both have changed one", () => {
  const [mine, theirs] = ["She is eighty.", "She is a hundred."].map((memory) => ({ ...BASE, memory, lore: [entry("a", memory), BASE.lore[1]] }));
  const merged = merge(BASE, mine, theirs);
  assert.equal(merged.memory, mine.memory);
  assert.deepEqual(merged.versions, [{ name: "memory", text: theirs.memory }, { name: "lore/a/text", text: theirs.memory }]);
  assert.equal(textAt(merged, "lore/a/text"), mine.memory);
  assert.equal(merge(BASE, mine, theirs, () => false).versions, undefined, "a setting is last-wins");
});

test("the other one follows to both texts, and a choice there is taken", () => {
  const [mine, theirs] = ["eighty", "a hundred"].map((memory) => ({ ...BASE, memory }));
  const merged = merge(BASE, mine, theirs);
  assert.deepEqual(merge(theirs, theirs, merged), merged);
  const chosen = { ...merged, memory: theirs.memory, versions: [] };
  assert.deepEqual(merge(merged, merged, chosen), chosen);
  const note = { ...merged, note: "Day." };
  assert.deepEqual(merge(merged, note, chosen), { ...chosen, note: "Day." }, "with what was changed meanwhile");
});

test("two who type on have one other version each, not all that passed", () => {
  let server = BASE;
  const seats = [{ base: BASE, at: { ...BASE, memory: "One" } }, { base: BASE, at: { ...BASE, memory: "Two" } }];
  for (let k = 0; k < 8; k++) {
    const seat = seats[k % 2];
    seat.at = merge(seat.base, seat.at, server);
    seat.base = server = seat.at;
    seat.at = { ...seat.at, memory: `${seat.at.memory.slice(0, -1)}${k}.` };
  }
  assert.equal(server.versions.length, 1);
});

test("a version that was already chosen between isn't lost", () => {
  const mine = { ...BASE, memory: "Tom", versions: [{ name: "memory", text: BASE.memory }] }; // as another tab has merged it
  const theirs = { ...BASE, note: "Day.", memory: "Eve" };
  assert.deepEqual(merge(BASE, mine, theirs).versions.map(({ text }) => text), [BASE.memory, "Eve"]);
});

test("nothing is asked if one text is part of the other, or empty", () => {
  const say = (memory) => ({ ...BASE, memory });
  for (const [mine, theirs] of [["Ada is ninety. She", "Ada is ninety. She limps."], ["", "Ada limps."], [" ", "x"]])
    for (const merged of [merge(BASE, say(mine), say(theirs)), merge(BASE, say(theirs), say(mine))])
      assert.deepEqual([merged.memory, merged.versions], [theirs, undefined]);
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
  assert.deepEqual(merge(base, mine, grown).conversation, grown.conversation);
});
