// What is found in a story: find.js.

import assert from "node:assert/strict";
import { test } from "node:test";
import { markMatch, places, searchTree, step } from "../../srb/web/story/search.js";
import { ROOT, Tree } from "../../srb/web/story/tree.js";

const piece = (text) => ({ text, ids: null });
const tree = new Tree([
  { id: "a", parent: ROOT, typed: true, pieces: [piece("Ada lit")], behind: " the lamp. The end.", batch: 1, order: 0 },
  { id: "b", parent: "a", kept: true, pieces: [piece(" the  Lamp,")], batch: 2, order: 0 },
  { id: "c", parent: "a", pieces: [piece(" a fire.")], batch: 2, order: 1 },
  { id: "d", parent: "a", discarded: true, pieces: [piece(" a LAMP (again).")], batch: 2, order: 2 },
  { id: "e", parent: "b", typed: true, pieces: [piece(" and slept")], behind: " the lamp. The end.", batch: 3, order: 0 },
  { id: "s", parent: "e", stem: true, pieces: [piece(" well")], batch: 4, order: 0 },
  { id: "f", parent: "s", pieces: [piece(" until noon")], batch: 5, order: 0 },
]);
const found = (query, drafts = []) => searchTree(tree, drafts, query).map(({ id, kind }) => `${id} ${kind}`);

test("kept, other and discarded text, text after a place, and drafts are found", () => {
  assert.deepEqual(found("lamp", [["c", "A lamplight"]]), ["c draft", "d discarded", "b kept", "a typed"]);
  assert.deepEqual(found("FIRE"), ["c not kept"]);
  assert.deepEqual([found(" "), found("nothing"), found("(again).")], [[], [], ["d discarded"]]);
});

test("matches may start before a node and contain any space", () => {
  assert.deepEqual(found("lit the lamp"), ["b kept"]);
  assert.deepEqual(found("well until"), ["f not kept"]);
  assert.deepEqual(found("Ada"), ["a typed"], "and it isn't found again in what goes on from there");
});

test("a result has the text around it", () => {
  assert.deepEqual(searchTree(tree, [], "fire"), [{ id: "c", kind: "not kept", before: "Ada lit a ", match: "fire", after: "." }]);
});

test("a server's result is marked if the words are spelled the same", () => {
  const snippet = " ... lit the\nLamp, and slept";
  assert.deepEqual(markMatch(snippet, "the lamp, AND"), { before: " ... lit ", match: "the\nLamp, and", after: " slept" });
  assert.deepEqual(markMatch("die Straße nach Süden", "suden"), { before: "die Straße nach Süden", match: "", after: "" });
});

const LAMPS = "The lamp. A Lamp,\nlamplight, the\nlamp";

test("every place of a text is found", () => {
  const texts = (query, how) => places(LAMPS, query, how).map(([from, to]) => LAMPS.slice(from, to));
  assert.deepEqual(texts("lamp"), ["lamp", "Lamp", "lamp", "lamp"]);
  assert.deepEqual(texts("lamp", { isCaseSensitive: true, isWholeWords: true }), ["lamp", "lamp"]);
  assert.deepEqual([texts("the lamp"), texts(""), texts(".")], [["The lamp", "the\nlamp"], [], ["."]]);
});

test("quotes, accents and soft hyphens are found however they are written", () => {
  const text = "“Don’t,” she said, 'don't'. Caf\u00e9, cafe\u0301, ex\u00adam\u00adple, 😀 a+b (c) [d] $& \\n";
  const texts = (query, how) => places(text, query, how).map(([from, to]) => text.slice(from, to));
  assert.deepEqual([texts("don't"), texts("don’t,”")], [["Don’t", "don't"], ["Don’t,”"]]);
  assert.deepEqual([texts('"Don'), texts("‘don")], [["“Don"], ["'don"]]);
  for (const cafe of ["caf\u00e9", "cafe\u0301"]) assert.deepEqual(texts(cafe, { isWholeWords: true }), ["Caf\u00e9", "cafe\u0301"]);
  assert.deepEqual([texts("cafe"), texts("example"), texts("😀")], [[], ["ex\u00adam\u00adple"], ["😀"]]);
  for (const sign of ["a+b", "(c)", "[d]", "$&", "\\n", "."]) assert.deepEqual(texts(sign), [sign]);
});

test("spaces at the ends of a query count, and several together", () => {
  const text = "the  cat the\ncat  then   end";
  const texts = (query) => places(text, query).map(([from, to]) => text.slice(from, to));
  assert.deepEqual([texts("the "), texts(" the")], [["the "], [" the", " the"]]); // not the line break
  assert.equal(places(text, " cat ", { isWholeWords: true }).length, 1);
  assert.deepEqual(texts("  "), ["  ", "  ", "   "]);
  assert.deepEqual(texts("the cat"), ["the  cat", "the\ncat"]);
  assert.deepEqual(found("the lamp "), found("the lamp"), "not in the tree");
});

test("next and previous go around", () => {
  const all = places(LAMPS, "lamp");
  const go = (selection, by) => step(all, selection, by);
  assert.deepEqual([go([0, 0], 1), go(all[0], 1), go(all[3], 1), go([11, 12], 1)], [0, 1, 0, 1]);
  assert.deepEqual([go([0, 0], -1), go(all[3], -1), go(all[0], -1), go([17, 17], -1)], [3, 2, 3, 1]);
});

test("a whole story is searched in a moment", () => {
  const story = new Array(61_000).fill("lamp").join(" ");
  assert.equal(places(story, "lamp", { isWholeWords: true }).length, 61_000);
});
