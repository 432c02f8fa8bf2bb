// How long a text is to be, length.js, and what the status line says, status.js.

import assert from "node:assert/strict";
import { test } from "node:test";
import { describeRequests } from "../../srb/web/desk/requests.js";
import { endOf, maxTokens, opening } from "../../srb/web/lib/length.js";

for (const [text, unit, count, whole] of [
  [' He said: "Go." ', "sentences", 1, null], // what comes next may belong to it
  [' He said: "Go." She', "sentences", 1, ' He said: "Go."'],
  ["One. Two. Three", "sentences", 2, "One. Two."],
  ["1. ... Two. Three", "sentences", 2, "1. ... Two."],
  ["One two three. Four. Five", "words", 4, "One two three. Four."],
  ["\n\nOne. Two.\n\nThree", "paragraphs", 1, "\n\nOne. Two."],
  ["\n\nOne. Two.\n", "paragraphs", 1, null],
])
  test(`${count} ${unit} of ${JSON.stringify(text)}`, () => assert.equal(endOf(text, { unit, count }), whole?.length ?? -1));

test("a length has room for its tokens and for the boundary after them", () =>
  assert.deepEqual([maxTokens({ unit: "words", count: 60 }), maxTokens({ unit: "sentences", count: 1 })], [340, 160]));

const begun = (n, fields = {}) => ({ hasBegun: true, running: new Set(Array(n).keys()), ...fields });
const done = (n) => ({ done: {}, nodes: Array(n).fill(0) });

for (const [going, over, said] of [
  [[], [], ""],
  [[begun(1, { hasBegun: false })], [], "Waiting for the server to start."],
  [[begun(1)], [done(5)], "One alternative being written."],
  [[begun(8), begun(2)], [], "10 alternatives being written."],
  [[begun(8), begun(1, { isLost: true })], [], "The connection was lost. The page is trying again; press Stop to give up."],
  [[], [{ isStopped: true }, done(5)], "Stopped."],
  [[], [{ isStopped: true, isGone: true }], "The connection was lost. The text that arrived is here."],
  [[], [done(1), done(7)], "Done: 8 alternatives."],
  [[], [done(1)], "Done: one alternative."],
])
  test(`the status is: ${said}`, () => assert.equal(describeRequests(going, over), said));

for (const [text, begun] of [
  ["\n\nThe door opened. Nobody came.", "\n\nThe door opened."],
  [" one two three four five.", " one two three"],
  ["Nobody", "Nobody"],
  ["", ""],
])
  test(`what varies ${JSON.stringify(text)} begins with`, () => assert.equal(opening(text), begun));
