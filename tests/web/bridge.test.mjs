import assert from "node:assert/strict";
import test from "node:test";

import { describeFit, suffixOf } from "../../srb/web/desk/bridge.js";

test("the suffix starts with the space that the writer left before the cursor", () => {
  assert.equal(suffixOf({ before: "He slept. ", behind: "He woke." }), " He woke.");
  assert.equal(suffixOf({ before: "He slept.", behind: " He woke." }), " He woke.");
  assert.equal(suffixOf({ before: "He slept.\n\n", behind: "He woke." }), "\n\nHe woke.");
  assert.equal(suffixOf({ before: "He slept. ", behind: "\nHe woke." }), "\nHe woke.");
  assert.equal(suffixOf({ before: "He ", behind: "a".repeat(5000) }).length, 1000);
});

test("alternatives are compared by the probability of the rest after them", () => {
  assert.equal(describeFit(-20, -20), "fits the rest best");
  assert.equal(describeFit(-20.5, -20), "fits the rest nearly as well");
  assert.equal(describeFit(-22, -20), "fits the rest less well");
  assert.equal(describeFit(-30, -20), "hardly fits the rest");
});
