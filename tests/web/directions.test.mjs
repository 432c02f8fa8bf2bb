import assert from "node:assert/strict";
import test from "node:test";

import { faultIn, linesOf, proposed, proposing, withProposal } from "../../srb/web/desk/directions.js";
import { branches } from "../../srb/web/settings/compare.js";

test("each line is a direction, without empty ones", () => {
  assert.deepEqual(linesOf(" she lies \n\nslower\n"), ["she lies", "slower"]);
  assert.deepEqual(linesOf(" \n"), []);
  assert.match(faultIn([]), /^Write one direction/);
  assert.equal(faultIn(["a", "b".repeat(1000)]), "");
  assert.equal(faultIn(["a", "b".repeat(1300)]), "Direction 2 has 1300 characters, and may have 1000. Shorten it.");
});

test("a proposal replaces an earlier one, and no line of the writer", () => {
  assert.equal(withProposal("", ["a storm", "she lies"]), "a storm\nshe lies");
  assert.equal(withProposal("slower\na storm at sea\nshe lies", ["a fire", "slower"], ["a storm", "she lies"]), "slower\na storm at sea\na fire");
});

test("the model proposes a list, each direction once", () => {
  assert.deepEqual(proposed('["a storm", "she lies", "a storm", "a\\nvisitor"]'), ["a storm", "she lies", "a visitor"]);
  assert.throws(() => proposed('["a storm", "she'), /didn't finish its list/);
  assert.throws(() => proposed("{}"), /didn't finish its list/);
  const { json_schema: schema, n } = proposing("p", 5);
  assert.deepEqual([schema.minItems, schema.maxItems, n], [5, 5, 1]);
  const words = new RegExp(schema.items.pattern, "u");
  for (const each of ["slower", "she lies to Tom, again", "Ada's half-open door", "嵐が来る"]) assert.match(each, words);
  for (const each of ["]]]]", "1. a storm", "a storm.", "", "one two three four five six seven eight nine"]) assert.doesNotMatch(each, words);
});

test("each direction is a branch with its own label and seed", () => {
  const columns = ["she lies", "slower"].map((direction) => ({ label: direction, fields: { direction } }));
  assert.deepEqual(branches(columns, { n: 2, seed: 7, max_tokens: 5 }, true), {
    max_tokens: 5,
    branches: [
      { direction: "she lies", label: "she lies", seed: 7 },
      { direction: "slower", label: "slower", seed: 8 },
    ],
  });
});
