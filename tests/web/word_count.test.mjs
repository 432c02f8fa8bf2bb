import assert from "node:assert/strict";
import { test } from "node:test";

import { chapters } from "../../srb/web/desk/chapters.js";
import { countWords, describeCount, sum, updateDay, wordsAdded } from "../../srb/web/desk/word_count.js";
import { words } from "../../srb/web/lib/length.js";

test("the words that a change adds equal the difference of two counts", () => {
  const letters = ["a", "é", "—", " ", "\n", "'", "1", "語", "。"];
  let seed = 7;
  const draw = (count) => (seed = (seed * 16807) % 2147483647) % count;
  const spell = (length) => Array.from({ length }, () => letters[draw(letters.length)]).join("");
  const mark = (length) => Array.from({ length }, () => "wmpc"[draw(4)]).join("");
  for (let k = 0; k < 2000; k++) {
    let [before, old, value, marks] = ["", "", "", ""];
    const edits = [];
    const keep = () => {
      const [text, own] = [spell(draw(6))].flatMap((each) => [each, mark(each.length)]);
      [before, old, value, marks] = [before + text, old + own, value + text, marks + own];
    };
    for (let count = 1 + draw(3); count > 0; count--) {
      keep();
      const [removed, added] = [draw(4), draw(4)].map(spell);
      const gone = mark(removed.length);
      edits.push({ at: value.length, removed, added, marks: gone });
      [before, old, value, marks] = [before + removed, old + gone, value + added, marks + "wmp"[draw(3)].repeat(added.length)];
    }
    keep();
    const by = wordsAdded({ value, marksOf: (from, to) => marks.slice(from, to) }, edits);
    const [now, then] = [countWords(value, marks), countWords(before, old)];
    const expected = Object.fromEntries(Object.keys(now).map((name) => [name, now[name] - then[name]]));
    assert.deepEqual(by, expected, JSON.stringify([before, edits]));
    assert.equal(sum(now), words(value));
  }
});

test("a Chinese or Japanese character is a word", () => {
  assert.equal(words("彼女はランプを灯した。"), 10);
  assert.equal(words("他买了 iPhone。 2 个"), 6);
  assert.equal(words("그는 램프를 켰다. don't — well-known"), 5);
});

const counted = ({ mine, model, pasted }) => ({ mine, model, pasted });

test("a day starts at zero words, and never goes below", () => {
  const first = updateDay({}, "Monday", { mine: 12, pasted: 40 });
  assert.deepEqual([first.date, counted(first)], ["Monday", { mine: 12, model: 0, pasted: 40 }]);
  assert.deepEqual(counted(updateDay(first, "Monday", { mine: -20, pasted: -1 })), { mine: 0, model: 0, pasted: 39 });
  const next = updateDay({ ...first, goal: 500 }, "Tuesday", { mine: 3 });
  assert.deepEqual([next.date, next.goal, counted(next)], ["Tuesday", 500, { mine: 3, model: 0, pasted: 0 }]);
});

test("older words that are cut and pasted, or deleted and undone, aren't today's", () => {
  const go = (day, mine, isBack) => updateDay(day, "Monday", { mine }, isBack);
  const cut = go(go({}, 5), -100);
  assert.equal(go(cut, 100, true).mine, 5);
  assert.equal(go(go(go(cut, 100, true), -100, true), 100, true).mine, 5, "undone, redone and undone");
  assert.equal(go(go(cut, 100, true), 100, true).mine, 105, "pasted twice");
  assert.equal(go(cut, 7).mine, 7, "what is typed counts at once");
  assert.equal(updateDay(cut, "Tuesday", { mine: 100 }, true).mine, 100);
});

test("counts are described", () => {
  assert.equal(describeCount(1, updateDay({}, "Monday")), "1 word · today: 0 yours");
  assert.equal(describeCount(1200, { mine: 30, model: 0, pasted: 0, goal: 500 }), `${(1200).toLocaleString()} words · today: 30 of 500 yours`);
  assert.equal(describeCount(7, { mine: 3, model: 40, pasted: 5 }), "7 words · today: 3 yours, 40 the model's, 5 pasted");
});

test("chapters start with headings of the first two levels", () => {
  const text = "Before.\n# The boat\nIt came in.\n\n## Inland\n### Not one\n#nor this\n#  Night \n# \nShe slept";
  const found = chapters(text);
  assert.deepEqual(found.map(({ title, words }) => [title, words]), [["The boat", 3], ["Inland", 4], ["Night", 2]]);
  for (const { title, at } of found) assert.ok(text.slice(0, at).trimEnd().endsWith(title));
});
