// Where the probabilities of a text's words are widest.

import assert from "node:assert/strict";
import { test } from "node:test";

globalThis.matchMedia ??= () => ({ matches: false });
const { forksOf, widest, widthOf } = await import("../../srb/web/desk/forks.js");

const top = (...all) => all.map(([text, p], id) => ({ id, text, p }));

test("a place is as wide as the number of words that are equally likely there", () => {
  assert.equal(widthOf(top(["a", 1])), 1);
  assert.ok(Math.abs(widthOf(top(["a", 0.25], ["b", 0.25], ["c", 0.25], ["d", 0.25])) - 4) < 1e-9);
  assert.ok(Math.abs(widthOf(top(["a", 0.02], ["b", 0.02])) - 50) < 1e-9); // the others are no more likely
  assert.equal(widthOf([]), 1);
});

test("forks are where words begin, with the word that was taken and the others", () => {
  const pieces = [
    { text: " nev", top: top([" nev", 0.5], [" the", 0.5]) },
    { text: "er", top: top(["er", 0.5], ["a", 0.5]) }, // within a word
    { text: ",", top: top([",", 0.5], [".", 0.5]) },
    { text: " slept" }, // unknown
    { text: " he", top: top([" he", 1]) }, // the only choice
    { text: "\n", top: top(["\n", 0.5], [" ", 0.5]) },
    { text: "Ada", top: top(["Ada", 0.2], ["The", 0.2]) },
  ];
  const forks = forksOf("It was", pieces).map(({ at, k, word, others, before }) => ({ at, k, word, others, before }));
  assert.deepEqual(forks, [
    { at: 6, k: 0, word: "never,", others: ["the"], before: "It was" },
    { at: 23, k: 6, word: "Ada", others: ["The"], before: "It was never, slept he\n" },
  ]);
  assert.deepEqual(forksOf("", [{ text: "It", top: top(["It", 0.5], ["He", 0.5]) }]), []); // the beginning of the story
});

test("the widest forks come first, some text apart", () => {
  const fork = (at, width) => ({ at, width, k: 0, word: "", others: [], before: "" });
  assert.deepEqual(widest([fork(0, 3), fork(10, 5), fork(100, 4)]).map(({ at }) => at), [10, 100]);
  assert.equal(widest(Array.from({ length: 20 }, (_, k) => fork(k * 100, k))).length, 6);
});
