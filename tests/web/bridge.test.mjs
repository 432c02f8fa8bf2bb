import assert from "node:assert/strict";
import test from "node:test";

import { describeFit, suffixOf } from "../../srb/web/desk/bridge.js";

test("what is to follow begins with the space that the writer left before the cursor", () => {
  assert.equal(suffixOf({ before: "He slept. ", behind: "He woke." }), " He woke.");
  assert.equal(suffixOf({ before: "He slept.", behind: " He woke." }), " He woke.");
  assert.equal(suffixOf({ before: "He slept.\n\n", behind: "He woke." }), "\n\nHe woke.");
  assert.equal(suffixOf({ before: "He slept. ", behind: "\nHe woke." }), "\nHe woke.");
  assert.equal(suffixOf({ before: "He ", behind: "a".repeat(5000) }).length, 1000);
});

test("alternatives are told apart by how much less likely the rest is behind them", () => {
  assert.equal(describeFit(-20, -20), "the rest follows best");
  assert.equal(describeFit(-20.5, -20), "the rest follows nearly as well");
  assert.equal(describeFit(-22, -20), "the rest follows less well");
  assert.equal(describeFit(-30, -20), "the rest hardly follows");
});
