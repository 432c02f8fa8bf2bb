import assert from "node:assert/strict";
import { test } from "node:test";

import { chapters } from "../../srb/web/desk/chapters.js";
import { countWords, describeCount, sum, updateDay, wordsAdded } from "../../srb/web/desk/word_count.js";
import { words } from "../../srb/web/lib/length.js";

test("the words that a change adds equal the difference of two counts", () => {
  const letters = ["a", "é", "—", " ", "\n", "'", "1"];
  let seed = 7;
  const draw = (count) => (seed = (seed * 16807) % 2147483647) % count;
  const spell = (length) => Array.from({ length }, () => letters[draw(letters.length)]).join("");
  for (let k = 0; k < 2000; k++) {
    const [left, removed, added, right] = [draw(6), draw(4), draw(4), draw(6)].map(spell);
    const [lefts, olds, rights] = [left, removed, right].map((each) => Array.from(each, () => "wmpc"[draw(4)]).join(""));
    const news = "wmp"[draw(3)].repeat(added.length);
    const [text, marks] = [left + added + right, lefts + news + rights];
    const by = wordsAdded({ text, marks }, { at: left.length, removed, added, marks: olds });
    const [now, before] = [countWords(text, marks), countWords(left + removed + right, lefts + olds + rights)];
    const expected = Object.fromEntries(Object.keys(now).map((name) => [name, now[name] - before[name]]));
    assert.deepEqual(by, expected, JSON.stringify([left, removed, added, right]));
    assert.equal(sum(now), words(text));
  }
});

test("a day starts at zero words, and never goes below", () => {
  const first = updateDay({}, "Monday", { mine: 12, pasted: 40 });
  assert.deepEqual(first, { date: "Monday", mine: 12, model: 0, pasted: 40, goal: undefined });
  assert.deepEqual(updateDay(first, "Monday", { mine: -20, pasted: -1 }), { ...first, mine: 0, pasted: 39 });
  assert.deepEqual(updateDay({ ...first, goal: 500 }, "Tuesday", { mine: 3 }), { date: "Tuesday", mine: 3, model: 0, pasted: 0, goal: 500 });
  assert.equal(describeCount(1, updateDay({}, "Monday")), "1 word · 0 today");
  assert.equal(describeCount(1200, { mine: 30, model: 0, pasted: 0, goal: 500 }), `${(1200).toLocaleString()} words · 30 of 500 today`);
  assert.equal(describeCount(7, { mine: 3, model: 40, pasted: 5 }), "7 words · 3 today, 40 the model's, 5 pasted");
});

test("chapters start with headings of the first two levels", () => {
  const text = "Before.\n# The boat\nIt came in.\n\n## Inland\n### Not one\n#nor this\n#  Night \n# \nShe slept";
  const found = chapters(text);
  assert.deepEqual(found.map(({ title, words }) => [title, words]), [["The boat", 3], ["Inland", 4], ["Night", 2]]);
  for (const { title, at } of found) assert.ok(text.slice(0, at).trimEnd().endsWith(title));
});
