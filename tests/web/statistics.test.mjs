// What was kept most, by setting.

import assert from "node:assert/strict";
import { test } from "node:test";
import { keptBySetting } from "../../srb/web/desk/statistics.js";

Map.groupBy ??= (items, keyOf) => items.reduce((all, each) => all.set(keyOf(each), [...(all.get(keyOf(each)) ?? []), each]), new Map()); // Node 18

const node = (batch, settings, more = {}) => ({ id: `${Math.random()}`, parent: "root", pieces: [], batch, settings, ...more });
const kept = { kept: true };

test("a setting's values are counted over the batches of which one was kept", () => {
  const nodes = [
    node(1, { temperature: 0.4, max_tokens: 9 }), node(1, { temperature: 1.2 }, kept),
    node(2, { temperature: 0.4, min_p: 0.1 }, kept), node(2, { temperature: 1.2, min_p: 0.1 }),
    node(3, { temperature: 0.4 }), node(3, { temperature: 1.2 }, kept),
    node(4, { temperature: 0.4 }), node(4, { temperature: 1.2 }), // none was kept
    node(5, { temperature: 2 }, kept), // a word of the writer's choice
    node(6, undefined, { typed: true }),
  ];
  assert.deepEqual(keptBySetting(nodes), [
    { setting: "Temperature", value: "1.2", kept: 2, shown: 3 },
    { setting: "Temperature", value: "0.4", kept: 1, shown: 3 },
    { setting: "Min P", value: "", kept: 2, shown: 4 },
    { setting: "Min P", value: "0.1", kept: 1, shown: 2 },
  ]);
});

test("styles are counted by their names", () => {
  const nodes = [node(1, { temperature: 0.5 }, { label: "Careful" }), node(1, {}, { label: "Default", ...kept }), node(2, {}), node(2, {}, kept)];
  assert.deepEqual(keptBySetting(nodes), [
    { setting: "Style", value: "Default", kept: 1, shown: 1 },
    { setting: "Style", value: "Careful", kept: 0, shown: 1 },
  ]);
});

test("without differences there is nothing to compare", () => {
  assert.deepEqual(keptBySetting([node(1, { temperature: 1 }), node(1, { temperature: 1 }, kept)]), []);
});
