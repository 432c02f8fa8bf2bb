import assert from "node:assert/strict";
import { test } from "node:test";
import { placeIn, spaceBetween } from "../../srb/web/story/keeping.js";

const before = "It was late. The old lighthouse keeper had one rule, and everybody knew";

test("what was typed at the cursor is after the place of the alternative", () => {
  assert.deepEqual(placeIn(`${before} it well`, { before }), [before.length, before.length]);
  assert.deepEqual(placeIn(`${before} it well. The end.`, { before, behind: " The end." }), [before.length, before.length]);
});

test("the place moves with what was changed before it", () => {
  const changed = before.replace("late", "very late");
  assert.deepEqual(placeIn(changed, { before }), [changed.length, changed.length]);
  assert.deepEqual(placeIn(`${changed} it`, { before }), [changed.length, changed.length], "and on both sides");
  assert.deepEqual(placeIn(`${before.slice(0, -4)} The end.`, { before, behind: " The end." }), [before.length - 4, before.length - 4]);
  const twice = `${changed} it. ${before.slice(-40)}`;
  assert.deepEqual(placeIn(twice, { before }), [changed.length, changed.length], "the nearest one");
});

test("there is no place if the text around it or the passage was changed", () => {
  assert.equal(placeIn(before.slice(0, -5), { before }), null);
  assert.equal(placeIn("Another text", { before }), null);
  assert.deepEqual(placeIn(`${before} it well!`, { before, passage: " it", behind: " well" }), [before.length, before.length + 3]);
  assert.equal(placeIn(`${before} of it well`, { before, passage: " it", behind: " well" }), null);
});

test("two words have a space between them", () => {
  assert.deepEqual([["lamp", "and"], ["lamp.", "“No"], ["lamp ", "and"], ["lamp", ", and"], ["lamp", " and"], ["lamp—", "and"]].map((each) => spaceBetween(...each)), [" ", " ", "", "", "", ""]);
});
