// What differs between versions of a passage: differences.js, rewrite.js.

import assert from "node:assert/strict";
import { test } from "node:test";
import { lengthOf, promptOf, selected } from "../../srb/web/desk/rewriter.js";
import { changedRanges } from "../../srb/web/desk/versions.js";

const others = (before, after) => changedRanges(before, after).map(([from, to]) => after.slice(from, to));

test("words of the longest common subsequence are unchanged", () => {
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

test("the model sees the passage in its story, as far as it fits", async () => {
  globalThis.sessionStorage = { getItem: () => null };
  globalThis.fetch = async (_path, { body }) => Response.json({ prompt: JSON.parse(body).messages[0].content });
  const context = { letters: () => 200, within: async (text, make) => ({ prompt: await make(`Memory. ${text}`) }) };
  const taken = { before: "x".repeat(500) + "Before. ", passage: "He left.", behind: " Behind." + "y".repeat(5000) };
  const asked = await promptOf(taken, "Shorter.", context, {});
  assert(asked.includes("Memory. xxx"));
  assert(asked.includes("Before. He left. Behind.y"));
  assert(asked.includes("\n\nHe left.\n\nShorter. Answer"));
  assert(asked.length < 800);
  assert(lengthOf("He left.") < 80);
});
