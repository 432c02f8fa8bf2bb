import assert from "node:assert/strict";
import { test } from "node:test";

import { nodeTitle, shorten } from "../../srb/web/story/titles.js";

test("a title has the first whole words, and a heading without its sign", () => {
  assert.equal(shorten("  The boat\ncame in. ", 40), "The boat came in.");
  assert.equal(shorten("# The boat\n\nIt came in late.", 20), "The boat It came in…");
  assert.equal(shorten("It rained all day", 9), "It rained…");
  assert.equal(shorten("It rained all day", 10), "It rained…");
  assert.equal(shorten("It rained all day", 12), "It rained…");
  assert.equal(shorten("Donaudampfschifffahrt", 5), "Donau…");
  assert.equal(shorten("#1 is the house", 40), "#1 is the house");
  assert.equal(shorten("# ", 40), "#");
  assert.equal(shorten(" \n", 40), "(blank)");
  assert.equal(nodeTitle({ pieces: [], passage: "the old man slept" }, 8), "Rewrite: the old…");
});
