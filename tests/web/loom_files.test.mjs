// Trees of Loomsidian and loom, loom_files.js.

import assert from "node:assert/strict";
import { test } from "node:test";
import { exportLoom, exportLoomsidian, importLoom } from "../../srb/web/story/loom_files.js";
import { ROOT, textOf, Tree } from "../../srb/web/story/tree.js";

const through = (data) => importLoom(JSON.parse(JSON.stringify(data)));
const treeOf = ({ nodes, current }) => new Tree(nodes, current);
const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/;

// As Loomsidian's command "Export" writes it.
const LOOMSIDIAN = {
  current: "b5b4b2a6-0c53-4d0e-a4ff-0c3a7f9f3f02",
  hoisted: [],
  searchTerm: "",
  nodes: {
    "b5b4b2a6-0c53-4d0e-a4ff-0c3a7f9f3f01": { text: "Once", parentId: null, collapsed: false, unread: false, bookmarked: false, searchResultState: null, lastVisited: 1700000000000 },
    "b5b4b2a6-0c53-4d0e-a4ff-0c3a7f9f3f02": { text: " upon a time", parentId: "b5b4b2a6-0c53-4d0e-a4ff-0c3a7f9f3f01", collapsed: false, unread: false, bookmarked: true, searchResultState: null },
    "b5b4b2a6-0c53-4d0e-a4ff-0c3a7f9f3f03": { text: " there was", parentId: "b5b4b2a6-0c53-4d0e-a4ff-0c3a7f9f3f01", collapsed: false, unread: true, bookmarked: false, searchResultState: null },
  },
  generating: null,
};

// As loom saves it: an empty root, and who wrote each node.
const LOOM = {
  root: {
    mutable: false, visited: true, text: "", id: "0", open: true,
    children: [
      {
        id: "1", parent_id: "0", text: "Once", open: true, chapter_id: "c", meta: { creation_timestamp: "2021-09-15-13.05.09", source: "prompt", modified: false },
        children: [
          { id: "2", parent_id: "1", text: " upon", children: [], meta: { source: "AI", modified: false }, tags: ["bookmark"] },
          { id: "3", parent_id: "1", text: " more", children: [], meta: { source: "mixed", modified: true } },
        ],
      },
    ],
  },
  chapters: { c: { id: "c", root_id: "1", title: "Beginning" } },
  selected_node_id: "3",
};

test("a tree of Loomsidian is imported: an exported one, and the only one of the plugin's own file", () => {
  const read = through(LOOMSIDIAN);
  const tree = treeOf(read);
  assert.equal(tree.text(read.current), "Once upon a time");
  assert.deepEqual(read.nodes.map(({ typed, kept, name }) => [typed, kept, name]), [[true, undefined, undefined], [undefined, true, "upon a time"], [undefined, undefined, undefined]]);
  assert.deepEqual(tree.alternatives(read.nodes[0].id).length, 2);
  assert.equal(through({ settings: {}, state: { "notes/My tale.md": LOOMSIDIAN } }).title, "My tale");
  assert.throws(() => through({ state: { a: LOOMSIDIAN, b: LOOMSIDIAN } }), /2 notes/);
});

test("a tree of loom is imported, with who wrote what", () => {
  const read = through(LOOM);
  const tree = treeOf(read);
  assert.deepEqual([tree.text("2"), tree.text(read.current), tree.marks("2"), tree.marks("3")], ["Once upon", "Once more", "wwwwmmmmm", "wwwwccccc"]);
  assert.deepEqual(read.nodes.map((node) => node.name), ["Beginning", "upon", undefined]);
  assert.equal(new Date(read.nodes[0].created).getSeconds(), 9);
  assert.equal(treeOf(through({ text: "a", children: [{ text: "b", children: [] }] })).nodes.size, 2);
});

test("files that are no trees are refused", () => {
  assert.deepEqual([null, [], {}, { nodes: [] }, "x"].map((data) => importLoom(data)), Array(5).fill(null));
  assert.throws(() => through({ current: "a", nodes: { a: { parentId: null } } }), /node a in this file has no text/);
  assert.throws(() => through({ current: "a", nodes: { a: { text: "x", parentId: "b" }, b: { text: "y", parentId: "a" } } }), /comes before itself/);
});

const story = () =>
  new Tree(
    [
      { id: "a", parent: ROOT, typed: true, batch: 1, order: 0, marks: "w4", pieces: [{ text: "Once", ids: [1] }] },
      { id: "b", parent: "a", batch: 2, order: 0, kept: true, name: "Here", pieces: [{ text: " upon", ids: [2] }] },
      { id: "c", parent: "a", batch: 2, order: 1, pieces: [{ text: " more", ids: [3] }] },
      { id: "x", parent: "a", batch: 2, order: 2, discarded: true, pieces: [{ text: " no", ids: [3] }] },
      { id: "d", parent: "b", batch: 3, order: 0, typed: true, marks: "w2m4", behind: "The end", pieces: [{ text: " a ti", ids: null }] },
    ],
    "b",
  );
const DRAFTS = [["b", "Once upon, he said"], ["c", "Once more"], [ROOT, "Another"]];
const textsOf = (read) => {
  const tree = treeOf(read);
  return read.nodes.filter((node) => !tree.children(node.id).length).map((node) => tree.text(node.id)).sort();
};
const LEAVES = ["Another", "Once more", "Once upon a tiThe end", "Once upon, he said"];

test("all texts survive Loomsidian's format, drafts and the text after the cursor, too", () => {
  const data = exportLoomsidian(story(), DRAFTS);
  assert.ok(Object.keys(data.nodes).every((id) => UUID.test(id)));
  const read = through(data);
  assert.deepEqual(textsOf(read), LEAVES);
  assert.equal(treeOf(read).text(read.current), "Once upon, he said");
  assert.deepEqual(Object.keys(exportLoomsidian(new Tree(), []).nodes).length, 1);
});

test("all texts survive loom's format, with who wrote them", () => {
  const data = exportLoom(story(), DRAFTS);
  const read = through(data);
  assert.deepEqual(textsOf(read), LEAVES);
  assert.deepEqual(read.nodes.find((node) => node.name)?.name, "Here");
  assert.deepEqual(data.root.children[0].meta.source, "prompt");
  assert.deepEqual(data.root.children[0].children.map((node) => node.meta.source), ["AI", "AI"]);
  assert.match(data.root.children[0].meta.creation_timestamp, /^\d{4}-\d\d-\d\d-\d\d\.\d\d\.\d\d$/);
});

test("awkward trees are imported: no parent, several beginnings, ids that are there twice, no chapters", () => {
  const note = { text: "x", collapsed: true, unread: true, bookmarked: false };
  const odd = through({ current: "gone", nodes: { a: { ...note, text: "", parentId: null }, b: { ...note, parentId: "gone" }, c: { ...note, text: "y", parentId: "a" }, d: { ...note, text: "😀".repeat(60), parentId: "c", bookmarked: true } } });
  assert.deepEqual([odd.current, odd.nodes.map((node) => [node.parent, textOf(node).length])], [ROOT, [[ROOT, 1], [ROOT, 1], ["c", 120]]]);
  assert.ok(odd.nodes[2].name.isWellFormed());
  const leaf = { id: "1", text: "x", children: [], meta: null };
  const twice = through({ root: { id: "root", text: "a", children: [leaf, leaf, { ...leaf, id: "2", meta: { source: "constructor" } }] }, chapters: null, selected_node_id: "2" });
  assert.deepEqual([twice.nodes.length, treeOf(twice).text(twice.current)], [4, "ax"]);
});

test("2,000 texts in a row are read, but aren't exported for loom, which can't open them", () => {
  const nodes = Array.from({ length: 2000 }, (_, k) => ({ id: `n${k}`, parent: k ? `n${k - 1}` : ROOT, order: k, pieces: [{ text: "a", ids: null }] }));
  const tree = new Tree(nodes, "n1999");
  const read = through(exportLoomsidian(tree, []));
  assert.equal(treeOf(read).text(read.current).length, 2000);
  assert.throws(() => exportLoom(tree, []), /2000 texts deep; loom opens at most 480.*Loomsidian/);
  const shallow = exportLoom(new Tree(nodes.slice(0, 480), "n1"), []);
  assert.equal(through(shallow).nodes.length, 480);
});
