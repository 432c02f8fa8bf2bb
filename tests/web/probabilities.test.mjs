// What the page makes of a text whose probabilities it asks for anew: recall.js and others.js.

import assert from "node:assert/strict";
import test from "node:test";

import { wordAt } from "../../srb/web/desk/other_words.js";
import { piecesOf, tokensAfter } from "../../srb/web/desk/probabilities.js";

const encoder = new TextEncoder();

const token = (text, others = [], bytes = encoder.encode(text)) => ({
  id: text.length,
  token: text,
  bytes: [...bytes],
  logprob: 0,
  top_logprobs: [text, ...others].map((each) => ({ id: each.length, token: each, logprob: -1 })),
});

test("the tokens of a text follow the common prefix", () => {
  assert.deepEqual(tokensAfter([1, 2], [1, 2, 3, 4]), { before: [1, 2], own: [3, 4], taken: 0 });
  assert.deepEqual(tokensAfter([1, 2, 9], [1, 2, 3, 4]), { before: [1, 2], own: [3, 4], taken: 1 });
});

test("a text has a piece per token, with other likely tokens", () => {
  const node = {};
  const found = piecesOf(node, " old man", [token(" old", [" young"]), token(" man")], 0);
  assert.deepEqual(found.map(({ text, ids, p }) => [text, ids, p]), [[" old", [4], 1], [" man", [4], 1]]);
  assert.deepEqual(found[0].top.map(({ text }) => text), [" old", " young"]);
  assert.ok(!node.healed);
});

test("a token that includes earlier text offers only tokens with the same prefix", () => {
  const node = {};
  const [first] = piecesOf(node, "me there", [token(" time", [" tile", " day"]), token(" there")], 1);
  assert.equal(first.text, "me");
  assert.deepEqual(first.top.map(({ text }) => text), ["me", "le"]);
  assert.ok(node.healed);
});

test("a token that replaces two earlier ones can't be chosen", () => {
  const [first, second] = piecesOf({}, "me there", [token(" time"), token(" there")], 2);
  assert.deepEqual([first.ids, first.top, second.ids], [null, undefined, [6]]);
});

test("a character may span two tokens", () => {
  const [a, b] = [encoder.encode("é").slice(0, 1), encoder.encode("é").slice(1)];
  const found = piecesOf({}, "é!", [token("\ufffd", [], a), token("\ufffd", [], b), token("!")], 0);
  assert.deepEqual(found.map(({ text }) => text), ["", "é", "!"]);
});

test("tokens of another text are refused", () => {
  assert.equal(piecesOf({}, "one", [token(" two")], 0), null);
});

test("tokens of the text before are dropped", () => {
  const node = {};
  const found = piecesOf(node, "Ada slept", [token("\n"), token("\n"), token("Ada", ["Tom"]), token(" slept")], 1);
  assert.deepEqual(found.map(({ text }) => text), ["Ada", " slept"]);
  assert.deepEqual(found[0].top.map(({ text }) => text), ["Ada", "Tom"]);
  assert.ok(!node.healed);
});

test("the word at the cursor includes a single space before it", () => {
  const value = "The old lamp, and\n\nTom’s light";
  const at = (first, last = first) => {
    const word = wordAt({ value, selection: [first, last] });
    return word && value.slice(...word);
  };
  assert.equal(at(6), " old");
  assert.equal(at(4), " old", "before its first letter");
  assert.equal(at(12), " lamp", "behind its last letter");
  assert.equal(at(20), "Tom’s", "a new line isn't a part of it");
  assert.equal(at(4, 8), " old", "selected with the space behind it");
  assert.equal(at(4, 10), null, "two words are selected");
  assert.equal(at(2), null, "nothing is before it");
  assert.equal(at(13), " lamp", "the last one before it");
});
