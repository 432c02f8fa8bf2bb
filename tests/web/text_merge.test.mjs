// What two tabs or devices have made of the same text: text_merge.js.

import assert from "node:assert/strict";
import { test } from "node:test";
import { applied, difference, mergeTexts } from "../../srb/web/story/text_merge.js";

const merged = (base, mine, theirs) => applied(mine, mergeTexts(base, mine, theirs).changes);

test("changes in different places are all made, whoever merges", () => {
  const base = "The lamp was red.\n\nHe slept.\n\nIt rained.";
  const [mine, theirs] = ["The old lamp was red.\n\nHe slept.\n\nIt rained.", "The lamp was red.\n\nHe rose.\n\nIt rained. A lot."];
  const both = "The old lamp was red.\n\nHe rose.\n\nIt rained. A lot.";
  assert.deepEqual([merged(base, mine, theirs), merged(base, theirs, mine)], [both, both]);
});

test("letters in the same word are all there", () => {
  assert.equal(merged("the keepr", "the kweepr", "the keeper"), "the kweeper");
  assert.equal(merged("lamp", "lam", "lamps"), "lams");
  assert.equal(merged("a", "ab", "ac"), "acb");
  assert.equal(merged("", "Once", "It was "), "It was Once");
});

test("letters that both have kept are there once, though one has replaced a part of their word", () => {
  const both = merged("keeperabc sea", "guardabc sea", "keexperabyc sea");
  for (const each of "abcxy") assert.equal(both.split(" sea")[0].split(each).length, each === "a" ? 3 : 2, `${each}: ${both}`); // guard has an a
});

test("where both have rewritten a word, both words stand", () => {
  assert.equal(merged("The red lamp.", "The blue lamp.", "The green lamp."), "The green blue lamp.");
  assert.equal(merged("The keeper slept.", "The guard slept.", "The keexper slept."), "The keexper guard slept.");
  assert.equal(merged("The keeper slept.", "A dog barked.", "One fish swam."), "One fish swam A dog barked.");
  assert.equal(merged("teh lamp", "the lamp", "the lamp, lit"), "the lamp, lit", "but for the same one");
});

test("what was typed before a word that the other has replaced stays before it", () => {
  const [base, typed, replaced] = ["Ada is ninety.", "Ada is eighty, not is ninety.", "Ada is a hundred."];
  const both = "Ada is eighty, not is a hundred.";
  assert.deepEqual([merged(base, typed, replaced), merged(base, replaced, typed)], [both, both]);
});

test("a word that one has changed isn't removed by the other", () => {
  const base = "He saw the lamp and slept.";
  const [removed, changed] = ["He slept.", "He saw the lamps and slept."];
  assert.deepEqual([merged(base, removed, changed), merged(base, changed, removed)], ["He lamps slept.", "He lamps slept."]);
});

test("the changes are small ones, so that a cursor stays between its letters", () => {
  const base = "one two three four five";
  const changes = mergeTexts(base, `${base} six`, "ONE two three for five").changes;
  const found = [];
  changes.iterChanges((from, to, _at, _end, added) => found.push([from, to, added.toString()]));
  assert.deepEqual(found, [[0, 3, "ONE"], [16, 17, ""]]);
});

test("the marks of who wrote what follow", () => {
  const [base, mine, theirs] = ["The lamp", "The old lamp", "The lamp burns"];
  const { changes, marks } = mergeTexts(base, mine, theirs, "wwwwwwwwmmmmmm");
  assert.deepEqual([applied(mine, changes), applied("wwwwccccwwww", marks)], ["The old lamp burns", "wwwwccccwwwwmmmmmm"]);
});

test("random letters of two who write at once are all there, once", () => {
  let seed = 7;
  const random = (below) => (seed = (seed * 16807) % 2147483647) % below;
  const pick = (list) => list[random(list.length)];
  let key = 0;
  const typed = new Set();
  const removed = new Set();
  const letter = () => {
    const each = String.fromCodePoint(0x4e00 + key++); // each its own, but in words of Latin letters, too
    typed.add(each);
    return each;
  };
  const edit = (text) => {
    const at = random(text.length + 1);
    const kind = random(10);
    if (kind === 0) return text.replaceAll(pick(["lamp", "the", "sea"]), pick(["guard", "A"])); // as Replace all
    if (kind < 8) return text.slice(0, at) + pick(["", " ", "a", "\n"]) + letter() + text.slice(at);
    const gone = text.slice(at, at + random(9));
    for (const each of gone) removed.add(each);
    return text.slice(0, at) + text.slice(at + gone.length);
  };
  for (let round = 0; round < 150; round++) {
    typed.clear();
    removed.clear();
    const base = Array.from({ length: random(12) }, () => pick(["lamp", "the", "sea ", " ", ".\n\n", "x"])).join("");
    let [mine, theirs] = [base, base];
    for (let k = random(12); k > 0; k--) mine = edit(mine);
    for (let k = random(12); k > 0; k--) theirs = edit(theirs);
    const both = merged(base, mine, theirs);
    for (const each of typed) {
      const count = both.split(each).length - 1;
      assert.ok(count === 1 || (removed.has(each) && count === 0), `${each} is there ${count} times: ${JSON.stringify([base, mine, theirs, both])}`);
    }
  }
});

test("all changes of a long text are found", () => {
  const base = Array.from({ length: 5000 }, (_, k) => `${["the", "keeper", "sea", "lamp"][(k * k + k >> 3) % 4]}${k % 50 ? " " : "\n\n"}`).join("");
  const replaced = base.replaceAll("keeper", "guard");
  const typed = `${base.slice(0, 12000)}and ${base.slice(12000)}`;
  assert.equal(merged(base, typed, replaced), typed.replaceAll("keeper", "guard"));
  assert.equal(applied(base, difference(base, replaced)), replaced);
});
