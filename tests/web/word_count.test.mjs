import assert from "node:assert/strict";
import { test } from "node:test";

import { chapters } from "../../srb/web/desk/chapters.js";
import { describeCount, updateDay, wordsAdded } from "../../srb/web/desk/word_count.js";
import { words } from "../../srb/web/lib/length.js";

test("the words that a change adds equal the difference of two counts", () => {
  const letters = ["a", "é", "—", " ", "\n", "'", "1"];
  let seed = 7;
  const draw = (count) => (seed = (seed * 16807) % 2147483647) % count;
  const text = (length) => Array.from({ length }, () => letters[draw(letters.length)]).join("");
  for (let k = 0; k < 2000; k++) {
    const [left, removed, added, right] = [draw(6), draw(4), draw(4), draw(6)].map(text);
    const by = wordsAdded(left + added + right, { at: left.length, removed, added });
    assert.equal(by, words(left + added + right) - words(left + removed + right), JSON.stringify([left, removed, added, right]));
  }
});

test("a day starts at zero words, and never goes below", () => {
  const first = updateDay({}, "Monday", 12);
  assert.deepEqual(first, { date: "Monday", words: 12, goal: undefined });
  assert.equal(updateDay(first, "Monday", -20).words, 0);
  assert.deepEqual(updateDay({ ...first, goal: 500 }, "Tuesday", 3), { date: "Tuesday", words: 3, goal: 500 });
  assert.equal(describeCount(1, updateDay({}, "Monday")), "1 word · 0 today");
  assert.equal(describeCount(1200, { words: 30, goal: 500 }), `${(1200).toLocaleString()} words · 30 of 500 today`);
});

test("chapters start with headings of the first two levels", () => {
  const text = "Before.\n# The boat\nIt came in.\n\n## Inland\n### Not one\n#nor this\n#  Night \n# \nShe slept";
  const found = chapters(text);
  assert.deepEqual(found.map(({ title, words }) => [title, words]), [["The boat", 3], ["Inland", 4], ["Night", 2]]);
  for (const { title, at } of found) assert.ok(text.slice(0, at).trimEnd().endsWith(title));
});
