// What the model sees: lore.js and prompt.js.

import assert from "node:assert/strict";
import test from "node:test";

import { EMPTY_ENTRY, matching } from "../../srb/web/story/lorebook.js";
import { arrangePrompt, beginning, tailTokens } from "../../srb/web/story/prompt.js";

const entry = (fields) => ({ ...EMPTY_ENTRY, text: "told", ...fields });
const isTold = (fields, text) => matching([entry(fields)], text).length === 1;
const plain = (parts) => parts.map(({ origin, text }) => [origin, text]);

test("an entry applies if one of its keywords is near the end", () => {
  assert.ok(isTold({ keys: "keeper, Ada" }, "Then ADA's lamp went out."));
  assert.ok(!isTold({ keys: "Ada" }, "An adaptation of it."), "only whole words");
  assert.ok(isTold({ keys: "old house" }, "in the old\nhouse"));
  assert.ok(isTold({ keys: "C++ (old)" }, "He wrote C++ (old) code."), "no sign of a key means anything");
  assert.ok(isTold({ keys: "灯台" }, "古い灯台の下"), "scripts without spaces");
  assert.ok(!isTold({ keys: "" }, "anything"));
  assert.ok(!isTold({ keys: "Ada" }, `Ada${" and so on".repeat(400)}`), "too far back");
  assert.ok(isTold({ keys: "Ada & lamp" }, "The lamp of Ada"));
  assert.ok(!isTold({ keys: "Ada & lamp" }, "Ada"));
  const told = (keys, text) => isTold({ keys }, text);
  assert.ok(told('"Paris, Texas", x', "He came to Paris, Texas."));
  assert.ok(!told('"Paris, Texas"', "He came to Texas."));
  assert.ok(told('"Tom & Jerry"', "It was Tom & Jerry."));
  assert.ok(!told('"Tom & Jerry"', "Jerry and Tom"));
  assert.ok(told('"a, b" & Ada, 6" nail', "Ada sang a, b"));
  assert.ok(told('6" nail, 5"', 'a 6" nail'));
  assert.ok(told('"""Ada"" she"', 'It was "Ada" she said.'));
});

test("an entry can need others, exclude others, be constant or off", () => {
  const fields = { keys: "Ada", also: "Tom, sea", never: "Paris" };
  assert.ok(isTold(fields, "Ada saw the sea"));
  assert.ok(!isTold(fields, "Ada slept"));
  assert.ok(!isTold(fields, "Ada saw the sea from Paris"));
  assert.ok(isTold({ always: true }, ""));
  assert.ok(!isTold({ always: true, off: true }, ""));
  assert.ok(!isTold({ always: true, text: " " }, ""));
});

const TEXT = "One.\n\nTwo.\nThree.\n\nFour, and";

test("without a background, the text is unchanged", () => {
  assert.deepEqual(arrangePrompt({ text: TEXT }), { parts: [{ origin: "story", text: TEXT }], place: 0 });
  assert.deepEqual(arrangePrompt({ text: "" }).parts, []);
});

test("memory and lore come first, the note comes some paragraphs before the end", () => {
  const entries = [entry({ keys: "a", text: "Lore. " }), entry({ name: "late", text: "Late.", depth: 2 })];
  const { parts, place } = arrangePrompt({ text: TEXT, memory: " Memory.\n", note: "Note.", depth: 2, entries });
  assert.deepEqual(plain(parts), [
    ["memory", "Memory.\n\n"],
    ["lore", "Lore.\n\n"],
    ["story", "One.\n\nTwo.\n"],
    ["lore", "Late.\n"],
    ["note", "Note.\n"],
    ["story", "Three.\n\nFour, and"],
  ]);
  assert.deepEqual(parts.filter(({ name }) => name).map(({ name }) => name), ["a", "late"]);
  assert.equal(TEXT.slice(place), "Three.\n\nFour, and");
  assert.deepEqual(plain(arrangePrompt({ text: TEXT, note: "Note.", depth: 9 }).parts), [["note", "Note.\n\n"], ["story", TEXT]]);
});

test("without its background, the prompt is the text", () => {
  for (let from = 0; from < TEXT.length; from++)
    for (const depth of [1, 2, 3, 4, 5]) {
      const { parts, place } = arrangePrompt({ text: TEXT, from, memory: "M", note: "N", depth, entries: [entry({ depth: 3 })] });
      const story = parts.filter(({ origin }) => origin === "story").map(({ text }) => text).join("");
      assert.equal(story, TEXT.slice(from));
      assert.ok(parts.map(({ text }) => text).join("").endsWith(TEXT.slice(place)));
    }
});

test("text is dropped up to a paragraph, or to a word if none is near", () => {
  assert.equal(beginning(`${TEXT}${" four".repeat(20)}`, 3), 6);
  assert.equal(beginning("one two three four five six", 5), 8);
  assert.equal(beginning("a".repeat(30), 5), 5);
});

test("sampled tokens at the end are reused, except before an insertion", () => {
  const pieces = [{ text: " a", ids: [1] }, { text: "b\n", ids: [2, 3] }, { text: "c", ids: [4] }];
  assert.deepEqual(tailTokens("so a" + "b\nc", 0, { pieces, isHealed: true }), { ids: [1, 2, 3, 4], letters: 5, isHealed: true });
  assert.deepEqual(tailTokens("so ab\nc", 6, { pieces, isHealed: true }), { ids: [4], letters: 1, isHealed: false });
  assert.deepEqual(tailTokens("so ab\nc", 5, { pieces, isHealed: false }), { ids: [4], letters: 1, isHealed: false });
  assert.deepEqual(tailTokens("so ab\nc", 2, { pieces, isHealed: true }), { ids: [2, 3, 4], letters: 3, isHealed: false });
  assert.deepEqual(tailTokens("so", 0, { pieces: [], isHealed: false }), { ids: [], letters: 0, isHealed: false });
});
