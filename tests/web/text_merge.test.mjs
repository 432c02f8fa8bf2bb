// What two tabs or devices have made of the same text: text_merge.js.

import assert from "node:assert/strict";
import { test } from "node:test";
import { applied, between, difference, marking, merged, rebased } from "../../srb/web/story/text_merge.js";
import { ChangeSet } from "../../srb/web/vendor/codemirror.js";

/** The changes of a text that replace these words of it. */
const replacing = (text, ...words) =>
  ChangeSet.of(words.map(([word, insert]) => ({ from: text.indexOf(word), to: text.indexOf(word) + word.length, insert })), text.length, "\n");

/** A text after the changes of two, which must be the same whoever is first. */
function both(text, mine, theirs) {
  const { own, others } = rebased(mine, theirs);
  const merged = applied(applied(text, mine), others);
  assert.equal(applied(applied(text, theirs), own), merged);
  return merged;
}

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

test("where both have replaced a word, both words stand", () => {
  const [lamp, keeper] = ["The red lamp.", "The keeper slept."];
  assert.equal(both(lamp, replacing(lamp, ["red", "blue"]), replacing(lamp, ["red", "green"])), "The blue green lamp.");
  assert.equal(both(keeper, replacing(keeper, ["keeper", "guard"]), replacing(keeper, ["per", "pxer"])), "The guard pxer slept.");
  assert.equal(both(keeper, replacing(keeper, ["The keeper slept", "A dog barked"]), replacing(keeper, ["The keeper slept", "One fish swam"])), "A dog barked One fish swam.");
  assert.equal(both(lamp, replacing(lamp, ["red", "old"], ["lamp", "sea"]), replacing(lamp, ["red", "old"])), "The old sea.", "but for the same one");
  assert.equal(both(keeper, ChangeSet.of({ from: 8, insert: "x" }, keeper.length), replacing(keeper, ["keeper", "guard"])), "The xguard slept.", "but a letter is no word");
  assert.equal(merged("The keeper slept.", "A dog barked.", "One fish swam."), "A dog barked One fish swam.", "also if nobody knows what was typed");
});

test("what was typed before a word that the other has replaced stays before it", () => {
  const [base, typed, replaced] = ["Ada is ninety.", "Ada is eighty, not is ninety.", "Ada is a hundred."];
  const both = "Ada is eighty, not is a hundred.";
  assert.deepEqual([merged(base, typed, replaced), merged(base, replaced, typed)], [both, both]);
});

test("letters typed into words that the other removes stay", () => {
  const base = "He saw the lamp and slept.";
  const [removed, changed] = [replacing(base, ["saw the lamp and ", ""]), replacing(base, ["lamp", "lamps"])];
  assert.equal(both(base, removed, ChangeSet.of({ from: 15, insert: "s" }, base.length)), "He sslept.");
  assert.equal(both(base, changed, removed), "He lampsslept.");
});

test("the changes are small ones, so that a cursor stays between its letters", () => {
  const changes = difference("one two three four five", "ONE two three for five");
  const found = [];
  changes.iterChanges((from, to, _at, _end, added) => found.push([from, to, added.toString()]));
  assert.deepEqual(found, [[0, 3, "ONE"], [16, 17, ""]]);
});

test("changes that are known are used, if they lead from the one text to the other", () => {
  const [first, second] = [ChangeSet.of({ from: 0, insert: "a" }, 1), ChangeSet.of({ from: 2, insert: "a" }, 2)];
  assert.deepEqual(between("a", "aaa", [first.toJSON(), second]).toJSON(), first.compose(second).toJSON());
  assert.equal(applied("b", between("b", "aba", [first, null])), "aba");
  assert.equal(applied("b", between("b", "aab", [first, second])), "aab");
});

test("the marks of who wrote what follow", () => {
  const [base, mine, theirs] = ["The lamp", "The old lamp", "The lamp burns"];
  const [own, made] = [difference(base, mine), difference(base, theirs)];
  const { others, parting } = rebased(own, made);
  const marks = rebased(marking(own, "wwwwccccwwww"), marking(made, "wwwwwwwwmmmmmm"), marking(parting, "")).others;
  assert.deepEqual([applied(mine, others), applied("wwwwccccwwww", marks)], ["The old lamp burns", "wwwwccccwwwwmmmmmm"]);
});

test("random letters of two who write at once are all there, once", () => {
  let seed = 7;
  const random = (below) => (seed = (seed * 16807) % 2147483647) % below;
  const pick = (list) => list[random(list.length)];
  let key = 0;
  const letter = () => String.fromCodePoint(0x4e00 + key++); // each its own, but in words of Latin letters, too
  const edit = ({ text, changes }) => {
    const at = random(text.length + 1);
    const kind = random(10);
    const end = kind < 8 ? at : Math.min(text.length, at + random(9));
    const word = pick(["lamp", "the", "sea"]);
    const all = [...text.matchAll(word)].map(({ index }) => ({ from: index, to: index + word.length, insert: "guard" })); // as Replace all
    const insert = kind < 9 ? pick(["", " ", "a", "\n"]) + letter() : "";
    const next = ChangeSet.of(kind ? { from: at, to: end, insert } : all, text.length, "\n");
    return { text: applied(text, next), changes: changes.compose(next) };
  };
  for (let round = 0; round < 1500; round++) {
    const text = Array.from({ length: random(12) }, () => pick(["lamp", "the", "sea ", " ", ".\n\n", "x"])).join("");
    const base = { text, changes: ChangeSet.empty(text.length) };
    let [mine, theirs] = [base, base];
    for (let k = random(12); k > 0; k--) mine = edit(mine);
    for (let k = random(12); k > 0; k--) theirs = edit(theirs);
    const now = both(text, mine.changes, theirs.changes);
    for (const each of `${mine.text}${theirs.text}`)
      if (each >= "\u4e00") assert.equal(now.split(each).length, 2, `${each}: ${JSON.stringify([text, mine.text, theirs.text, now])}`);
  }
});

test("all changes of a long text are found", () => {
  const base = Array.from({ length: 5000 }, (_, k) => `${["the", "keeper", "sea", "lamp"][(k * k + k >> 3) % 4]}${k % 50 ? " " : "\n\n"}`).join("");
  const replaced = base.replaceAll("keeper", "guard");
  const typed = `${base.slice(0, 12000)}and ${base.slice(12000)}`;
  assert.equal(merged(base, typed, replaced), typed.replaceAll("keeper", "guard"));
  assert.equal(applied(base, difference(base, replaced)), replaced);
});
