// Lorebooks of other programs: lorebook_files.js.

import assert from "node:assert/strict";
import test from "node:test";

import { EMPTY_ENTRY } from "../../srb/web/story/lorebook.js";
import { importLorebook, parseLorebook } from "../../srb/web/story/lorebook_files.js";

const made = (fields) => ({ ...EMPTY_ENTRY, ...fields });

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
  assert.deepEqual(entries, [
    made({ keys: "Tom", also: "sea & lamp", text: "x", depth: 2 }),
    made({ keys: "Tom", never: "sea & lamp", text: "x", off: true, depth: 3 }),
    made({ keys: "Tim", never: "sea", text: "x" }),
    made({ name: "The keeper", keys: "Ada, Ann", also: "sea, lamp", text: "x" }),
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
  const expected = [
    made({ name: "c", keys: "Ada, keeper", also: "sea", never: "Paris, Rome", text: "x" }),
    made({ keys: "Tom", text: "y", always: true, off: true }),
    made({ keys: "Tim", text: "z" }),
  ];
  for (const data of [worldinfo, { prompt: "Once", memory: "m", worldinfo }])
    assert.deepEqual(importLorebook(data), { entries: expected, ignored: [], unread: [] });
});

const V2 = {
  name: "Book", scan_depth: 50, extensions: {},
  entries: [
    { keys: ["Ada", "Paris, Texas"], secondary_keys: ["sea"], selective: true, enabled: true, content: "x", insertion_order: 9, name: "her", extensions: { position: 4, depth: 2 }, position: "after_char" },
    { keys: ["Tom & Jerry"], secondary_keys: ["sea"], enabled: false, content: "y", insertion_order: 1, case_sensitive: true, constant: true, extensions: {} },
    null,
    { keys: ["odd"], content: 5 },
    { keys: ["Pi+"], use_regex: true, content: "@@depth 5\n@@dont_activate\n@@role user\nz", insertion_order: 10, enabled: true },
  ],
};
const V2_ENTRIES = [
  made({ keys: '"Tom & Jerry"', text: "y", always: true, off: true }),
  made({ name: "her", keys: 'Ada, "Paris, Texas"', also: "sea", text: "x", depth: 2 }),
  made({ text: "z", off: true, depth: 5 }),
];
const V2_IGNORED = ["settings of the lorebook: scan depth", "capitals that matter (1)", "keys that are regular expressions (1)", "decorators (1)"];
const card = { spec: "chara_card_v2", data: { name: "Ada", first_mes: "Hi", character_book: V2 } };

test("lorebooks and cards V2 and V3: each entry as it was, and a bad one costs only itself", () => {
  const unread = ["entry 3", "entry 4"];
  const expected = { entries: V2_ENTRIES, ignored: V2_IGNORED, unread };
  assert.deepEqual(importLorebook(V2), expected);
  assert.deepEqual(importLorebook({ spec: "lorebook_v3", data: V2 }), expected);
  const keyed = { ...V2, entries: Object.fromEntries(V2.entries.entries()) };
  assert.deepEqual(importLorebook(keyed), expected);
  assert.deepEqual(importLorebook(V2.entries), { ...expected, ignored: V2_IGNORED.slice(1) });
  for (const spec of ["chara_card_v2", "chara_card_v3"])
    assert.deepEqual(importLorebook({ ...card, spec }), { ...expected, ignored: ["the character", ...V2_IGNORED] });
});

test("NovelAI's, Agnai's, RisuAI's and AI Dungeon's", () => {
  const novel = {
    lorebookVersion: 5,
    categories: [{ id: "c", enabled: false }],
    entries: [
      { displayName: "Her", text: "x", keys: ["Ada & lamp", "/sea/i"], enabled: true, forceActivation: false, searchRange: 500, category: "" },
      { displayName: "Him", text: "y", keys: ["Tom"], enabled: true, forceActivation: true, searchRange: 1000, category: "c" },
    ],
  };
  const entries = [made({ name: "Her", keys: "Ada & lamp", text: "x" }), made({ name: "Him", keys: "Tom", text: "y", always: true, off: true })];
  const ignored = ["a scan depth (1)", "keys that are regular expressions (1)"];
  for (const data of [novel, { scenarioVersion: 3, lorebook: novel }]) assert.deepEqual(importLorebook(data), { entries, ignored, unread: [] });
  const shorts = [
    { kind: "memory", entries: [{ name: "n", entry: "x", keywords: ["Ada"], enabled: false }] },
    { type: "risu", data: [{ key: "Ada", comment: "n", content: "x", secondkey: "", selective: false, disable: true, insertorder: 1 }] },
    [{ title: "n", value: "x", keys: "Ada", type: "Character", disabled: true }],
  ];
  for (const data of shorts) assert.deepEqual(importLorebook(data).entries, [made({ name: "n", keys: "Ada", text: "x", off: true })]);
});

test("a card in a picture", () => {
  const chunk = (name, text) => {
    const head = Buffer.alloc(4);
    head.writeUInt32BE(text.length);
    return Buffer.concat([head, Buffer.from(name + text, "latin1"), Buffer.alloc(4)]);
  };
  const picture = (...chunks) => new Uint8Array(Buffer.concat([Buffer.from("89504e470d0a1a0a", "hex"), chunk("IHDR", "x".repeat(13)), ...chunks])).buffer;
  const coded = (value) => Buffer.from(JSON.stringify(value)).toString("base64");
  const named = { ...card, data: { ...card.data, name: "Ädä 灯" } };
  assert.deepEqual(parseLorebook(picture(chunk("tEXt", `Chara\0${coded({})}`), chunk("iTXt", `ccv3\0\0\0en\0\0${coded(named)}`))), named);
  assert.deepEqual(parseLorebook(new TextEncoder().encode(JSON.stringify(V2)).buffer), V2);
  assert.throws(() => parseLorebook(picture(chunk("tEXt", "Software\0x"))), /no character card/);
  assert.throws(() => parseLorebook(picture(chunk("tEXt", "chara\0{"))), /neither JSON/);
});

test("a file that is no lorebook is refused", () => {
  for (const data of [null, 5, {}, { worldinfo: {} }, { entries: 5 }]) assert.throws(() => importLorebook(data), /no entries/);
  assert.throws(() => importLorebook({ spec: "chara_card_v2", data: {} }), /card has no lorebook/);
  assert.deepEqual(importLorebook({ entries: { 0: { key: ["a"] } } }), { entries: [], ignored: [], unread: ["entry 1"] });
});
