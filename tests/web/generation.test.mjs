// What ends when no page is there to see it: generation.js.

import assert from "node:assert/strict";
import { test } from "node:test";
import { applyLengthLimits } from "../../srb/web/story/generation.js";

const UNTIL = { unit: "sentences", count: 1, from: 0 };
const TEXT = " It rained. Then it";

const node = (id, others = {}) => ({ id, parent: "p", request: "r", pieces: [{ text: TEXT, ids: [1, 2] }], end: "reached its length", ...others });

test("an alternative that ended while the page was closed is cut at its boundary", () => {
  const [late, short, other] = [node("a"), node("b", { pieces: [{ text: " It rain", ids: [1] }] }), node("c", { request: "of another device" })];
  const said = applyLengthLimits([late, short, other], { r: UNTIL });
  assert.deepEqual(said, { untils: {}, late: [late] });
  assert.deepEqual([late.pieces, late.endsAt, late.end], [[{ text: " It rained.", ids: null }], 11, "reached its length"]);
  assert.deepEqual([short.endsAt, other.pieces[0].text], [undefined, TEXT]);
});

test("it isn't cut if it was kept or continued", () => {
  const nodes = [node("a", { kept: true }), node("b"), { ...node("c"), parent: "b", request: null }];
  assert.deepEqual(applyLengthLimits(nodes, { r: UNTIL }).late, []);
  assert.deepEqual(nodes.map((each) => each.pieces[0].text), [TEXT, TEXT, TEXT]);
});

test("a running alternative is cut later", () => {
  const running = node("a", { pieces: [], end: undefined });
  assert.deepEqual(applyLengthLimits([running], { r: UNTIL, gone: UNTIL }), { untils: { r: UNTIL }, late: [] });
  assert.equal(running.until, UNTIL);
});
