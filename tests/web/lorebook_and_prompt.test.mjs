// What the model sees: lore.js and prompt.js.

import assert from "node:assert/strict";
import test from "node:test";

import { EMPTY_ENTRY, importLorebook, matching } from "../../srb/web/story/lorebook.js";
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

test("SillyTavern's lorebooks", () => {
  const shared = { content: "x", comment: "", disable: false, constant: false, selective: true, position: 0 };
  const { entries, ignored } = importLorebook({
    entries: {
      0: { ...shared, key: ["Ada", "Ann"], keysecondary: ["sea", "lamp"], selectiveLogic: 0, order: 200, comment: "The keeper" },
      1: { ...shared, key: ["Tom"], keysecondary: ["sea", "lamp"], selectiveLogic: 3, order: 100, position: 4, depth: 2 },
      2: { ...shared, key: ["Tom"], keysecondary: ["sea", "lamp"], selectiveLogic: 1, order: 100, disable: true, position: 3 },
      3: { ...shared, key: ["/To+m/i", "Tim"], keysecondary: ["sea"], selectiveLogic: 2, order: 150, probability: 50, useProbability: true },
      4: { ...shared, key: [], keysecondary: ["sea"], selective: false, constant: true, order: 300, content: "{{char}} waits." },
    },
  });
  const made = (fields) => ({ ...EMPTY_ENTRY, text: "x", ...fields });
  assert.deepEqual(entries, [
    made({ keys: "Tom", also: "sea & lamp", depth: 2 }),
    made({ keys: "Tom", never: "sea & lamp", off: true, depth: 3 }),
    made({ keys: "Tim", never: "sea" }),
    made({ name: "The keeper", keys: "Ada, Ann", also: "sea, lamp" }),
    made({ always: true, text: "{{char}} waits." }),
  ]);
  assert.deepEqual(ignored, ["a probability (1)", "keys that are regular expressions (1)", "names in {{ }} (1)"]);
});

test("KoboldAI's, alone or in a story", () => {
  const worldinfo = [
    { key: "Ada, keeper", keysecondary: "sea", keyanti: "Paris,Rome", content: "x", selective: true, constant: false, comment: "c" },
    { key: "Tom", keysecondary: "sea", content: "y", selective: false, constant: true, widisabled: true, probability: "100" },
    { key: "Tim", content: "z" },
  ];
  const made = (fields) => ({ ...EMPTY_ENTRY, ...fields });
  const expected = [
    made({ name: "c", keys: "Ada, keeper", also: "sea", never: "Paris, Rome", text: "x" }),
    made({ keys: "Tom", text: "y", always: true, off: true }),
    made({ keys: "Tim", text: "z" }),
  ];
  for (const data of [worldinfo, { prompt: "Once", memory: "m", worldinfo }])
    assert.deepEqual(importLorebook(data), { entries: expected, ignored: [] });
});

test("a file that is no lorebook is refused", () => {
  for (const data of [null, 5, {}, { entries: [] }, { worldinfo: {} }]) assert.throws(() => importLorebook(data), /neither/);
  assert.throws(() => importLorebook({ entries: { 0: { key: ["a"] } } }), /entry 1 in this file has no content/);
});
