// What a request has for columns that are compared, and when it asks for what comes next, compare.js.

import assert from "node:assert/strict";
import { test } from "node:test";
import { branches, withAhead } from "../../srb/web/settings/compare.js";

const body = { n: 2, ahead: 3, temperature: 1 };

test("alternatives are prefetched if they don't depend on each other", () => assert.deepEqual(withAhead(body), body));

test("nothing is prefetched if the setting is empty", () => assert.deepEqual(withAhead({ n: 2 }), { n: 2 }));

for (const fields of [
  { diversity: 0.5 },
  { distinct: true },
  { avoid: ["Once upon"] },
  { suffix: " The end." },
  { branches: branches([{ label: "0.1", fields: {} }], { n: 1, seed: 1 }).branches },
])
  test(`nor with ${Object.keys(fields)}, which the server would refuse`, () =>
    assert.deepEqual(withAhead({ ...body, ...fields }), { n: 2, temperature: 1, ...fields }));
