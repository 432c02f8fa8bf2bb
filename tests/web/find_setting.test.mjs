import assert from "node:assert/strict";
import { test } from "node:test";

import { has, wordsOf } from "../../srb/web/find_setting.js";

test("a setting is found by all words of what is looked for, in any order", () => {
  assert.ok(has("No loops dry_multiplier: DRY", wordsOf(" dry  LOOP")));
  assert.ok(!has("No loops", wordsOf("loops never")));
  assert.ok(has("anything", wordsOf("")));
});
