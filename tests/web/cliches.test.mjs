import assert from "node:assert/strict";
import { test } from "node:test";
import { bannedIn, isBanned, repeatedPhrases, toggleBan } from "../../srb/web/story/cliches.js";

const told = (names) => names.map((name) => `${name} froze. A shiver ran down her spine, and then it was over.`);

test("a phrase counts once for each alternative, and the longest stands for its parts", () => {
  const found = repeatedPhrases(told(["Ada", "Eve", "Tom"]), []);
  assert.deepEqual(found, [{ phrase: "A shiver ran down her spine", count: 3, own: 0 }, { phrase: "and then it was over", count: 3, own: 0 }]);
  const twice = "a shiver ran down. A shiver ran down. A shiver ran down.";
  assert.deepEqual(repeatedPhrases([twice, "nothing", "more"], []), []);
  assert.deepEqual(repeatedPhrases(told(["Ada", "Eve"]), []), [], "two may be chance");
});

test("what the writer writes as often is not the model's cliché", () => {
  const all = told(["Ada", "Eve", "Tom", "Sam"]);
  const own = ["And then it was over.", "He left, and then it was over. A SHIVER RAN down her spine."];
  assert.deepEqual(repeatedPhrases(all, own), [{ phrase: "A shiver ran down her spine", count: 4, own: 1 }]);
});

test("punctuation and line breaks end a phrase", () => {
  const split = ["one two, three four", "one two\nthree four", "one two. Three four"];
  assert.deepEqual(repeatedPhrases(split, []), []);
  assert.deepEqual(repeatedPhrases(Array(3).fill("it  didn't old-fashioned"), []).map(({ phrase }) => phrase), ["it didn't old-fashioned"]);
});

test("a short phrase that is far more common comes first, without longer ones that share three words", () => {
  const texts = [...Array(20).fill("one of the men"), ...Array(3).fill("one of the men who came home")];
  assert.deepEqual(repeatedPhrases(texts, []).map(({ phrase, count }) => [phrase, count]), [["one of the men", 23], ["the men who came home", 3]]);
});

test("a ban is a line of the setting", () => {
  const one = toggleBan("", "a shiver ran");
  assert.equal(one, "a shiver ran");
  const two = toggleBan(`${one}\n(?i)tapestry of`, "Tapestry of");
  assert.equal(two, one, "also one that was typed");
  assert.deepEqual([isBanned(two, "A shiver ran"), isBanned(two, "a shiver")], [true, false]);
  assert.deepEqual(bannedIn("(?i)one\n\ntwo"), ["one", "two"]);
  assert.equal(toggleBan(two, "A SHIVER ran"), "");
});
