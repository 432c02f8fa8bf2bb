// What differs between versions of a passage: differences.js, rewrite.js.

import assert from "node:assert/strict";
import { test } from "node:test";
import { differing } from "../../srb/web/differences.js";
import { lengthOf, question, selected } from "../../srb/web/rewrite.js";

const others = (before, after) => differing(before, after).map(([from, to]) => after.slice(from, to));

test("words that both versions have in this order are the same", () => {
  assert.deepEqual(others("He left the house.", "He left the old house at dawn."), ["old", "at dawn"]);
  assert.deepEqual(others("He left.", "He left."), []);
  assert.deepEqual(others("", "He left."), ["He left."]);
  assert.deepEqual(others("He left.", ""), []);
  assert.deepEqual(others("a b c", "c a b"), ["c"]);
  assert.deepEqual(others("word ".repeat(3000), "word ".repeat(3000)), ["word ".repeat(3000)], "too much to compare");
});

test("a passage is selected without the spaces around it", () => {
  assert.deepEqual(selected({ value: "One. Two. Three", selection: [4, 10] }), [5, 9]);
  assert(!selected({ value: "One. Two", selection: [4, 5] }));
  assert(!selected({ value: "One. Two", selection: [4, 4] }));
});

test("the model sees the passage in its story, as much of it as there is room for", () => {
  const asked = question({ before: "x".repeat(500) + "Before. ", passage: "He left.", behind: " Behind." + "y".repeat(5000) }, "Shorter.", 200);
  assert(asked.includes("Before. He left. Behind.y"));
  assert(asked.includes("\n\nHe left.\n\nShorter. Answer"));
  assert(asked.length < 800);
  assert(lengthOf("He left.") < 80);
});
