import assert from "node:assert/strict";
import { test } from "node:test";

import { hasWords, wordsOf } from "../../srb/web/settings/search.js";

test("a setting must match all words of a search, in any order", () => {
  assert.ok(hasWords("DRY multiplier dry_multiplier: phrases", wordsOf(" dry  MULTI")));
  assert.ok(!hasWords("DRY multiplier", wordsOf("dry never")));
  assert.ok(hasWords("anything", wordsOf("")));
});
