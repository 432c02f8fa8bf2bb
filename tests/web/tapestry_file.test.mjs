// Files of Tapestry Loom, tapestry_file.js. Both files here were written by Tapestry Loom's own library, tapestry-weave as of
// version 0.13.1 (with rkyv 0.8.14). Before it wrote saved.tapestry, it had read and validated the page's own export of that tree.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { MODEL, WRITER } from "../../srb/web/story/authorship.js";
import { exportTapestry, importTapestry, writeWeave } from "../../srb/web/story/tapestry_file.js";
import { ROOT, Tree } from "../../srb/web/story/tree.js";

const read = async (name) => new Uint8Array(await readFile(new URL(`tapestry/${name}.tapestry`, import.meta.url)));
const LOW_TIDE = await read("low_tide");
const importBytes = (bytes) => importTapestry(bytes.slice().buffer);
const changed = (change) => {
  const bytes = LOW_TIDE.slice();
  change(bytes);
  return bytes;
};

test("a file of Tapestry Loom is imported: texts, bookmarks, models, who wrote what, notes", () => {
  const story = importBytes(LOW_TIDE);
  const tree = new Tree(story.nodes, story.current);
  const leaves = story.nodes.filter((node) => !tree.children(node.id).length);
  assert.deepEqual(leaves.map((node) => [tree.text(node.id), node.label, Boolean(node.typed), node.name]), [
    ["The tide was out. 🌊 She waved 👋 and left", "Trinity", false, "👋 and left"], // the hand is split between two texts
    ["The tide was out. 🌊 She waved 👋 and stayed for the whole of that long grey winter", "Trinity Mini", false, undefined],
    ["The tide was out. 🌊 He slept.", undefined, false, undefined],
    ["The tide was out. 🌊 Broken �", "Trinity Mini", false, undefined],
    ["\ufeffAnother beginning", undefined, true, undefined], // after an empty text, which is left out
  ]);
  assert.equal(tree.text(story.current), tree.text(leaves[1].id));
  assert.deepEqual([story.title, story.notes], ["Low tide", "Ask Ann about the tide."]);
  assert.equal(new Date(story.nodes[0].created).toISOString(), "2025-02-11T15:30:06.952Z");
});

test("a tree is written as Tapestry Loom saves it, byte for byte", async () => {
  const id = (k) => `0194f5a1c3e8${String(k + 1).padStart(20, "0")}`;
  const texts = ["Once 🌊", " upon", " a time", "", " more", " there was", "Another beginning"];
  const parents = [null, 0, 1, 2, 0, 1, null].map((k) => k === null ? null : id(k));
  const nodes = texts.map((text, k) => ({
    id: id(k), parent: parents[k], text, author: k % 2 ? MODEL : WRITER, name: [2, 4].includes(k) ? "here" : undefined,
    children: parents.flatMap((parent, child) => (parent === id(k) ? id(child) : [])),
  }));
  assert.deepEqual(writeWeave(nodes, id(4)), await read("saved"));
});

test("an exported story comes back, of any size and with any text", () => {
  for (const size of [0, 1, 6, 7, 14, 15, 100, 300]) {
    const nodes = Array.from({ length: size }, (_, k) => ({
      id: `n${k}`, parent: k % 9 ? `n${Math.floor((k - 1) / (k < 50 ? 2 : 1))}` : ROOT, order: k, batch: 1e12 + k,
      pieces: [{ text: `${k}${"é😀".repeat(k % 5)}`, ids: null }], ...(k % 4 ? { kept: true } : { typed: true, name: "here" }),
    }));
    const tree = new Tree(nodes, size ? "n0" : ROOT);
    const story = importBytes(exportTapestry(tree, [[ROOT, "A draft"]]));
    const again = new Tree(story.nodes, story.current);
    const told = (one) => [...one.nodes.keys()].map((each) => `${one.text(each)} ${Boolean(one.nodes.get(each).typed)} ${Boolean(one.nodes.get(each).name)}`).sort();
    assert.deepEqual(told(again), [...told(tree), "A draft true false"].sort());
    assert.equal(again.text(story.current), size ? "0" : "A draft");
  }
});

test("a file that isn't Tapestry Loom's or has another version is named", () => {
  assert.throws(() => importBytes(new Uint8Array(3)), /isn't Tapestry Loom's/);
  assert.throws(() => importBytes(changed((bytes) => bytes.fill(65, 0, 24))), /isn't Tapestry Loom's/);
  assert.throws(() => importBytes(changed((bytes) => (bytes[24] = 2))), /version 2 of Tapestry Loom's format; the page reads version 0.*Copy the text there/);
});

test("a damaged file is refused or read, and never hangs", () => {
  for (let length = 32; length < LOW_TIDE.length; length += 5) assert.throws(() => importBytes(LOW_TIDE.slice(0, length)), /damaged; open it in Tapestry Loom/);
  let refused = 0;
  for (let at = 32; at < LOW_TIDE.length; at += 17) {
    for (const bits of [0x01, 0x40, 0xff]) {
      try {
        importBytes(changed((bytes) => (bytes[at] ^= bits)));
      } catch (error) {
        assert.match(error.message, /damaged/);
        refused += 1;
      }
    }
  }
  assert.ok(refused > 60, `${refused} were refused`);
});
