// Stories in files, exchange.js, and what nodes must be like, sound.js.

import assert from "node:assert/strict";
import { test } from "node:test";
import { toStored } from "../../srb/web/story/conversation.js";
import { ROOT, Tree } from "../../srb/web/story/tree.js";
import { exportTree, importTree } from "../../srb/web/story/tree_file.js";
import { repair } from "../../srb/web/story/validation.js";

const nodes = () => [
  { id: "a", parent: ROOT, typed: true, batch: 1, order: 0, whole: true, pieces: [{ text: "Once upon", ids: [1, 2] }] },
  {
    id: "b",
    parent: "a",
    batch: 2,
    order: 0,
    kept: true,
    seed: 7,
    request: "ours",
    settings: { temperature: 0.5 },
    pieces: [{ text: " a", ids: [3], p: 0.51234, top: [{ id: 9, text: " the", p: 0.4 }] }, { text: " time", ids: null }],
  },
];
const file = (fields = {}) => ({ format: "srb-tree", version: 2, nodes: [], ...fields });
const through = (data) => importTree(JSON.parse(JSON.stringify(data)));

test("an exported story is imported, with its drafts", () => {
  const tree = new Tree(nodes(), "b");
  const drafts = [[ROOT, "Once, "], ["b", "Once upon a time there"]];
  const data = exportTree(tree, drafts, { model: "a model", title: "A tale", question: "Who?", settings: { n: "2", seed: "" } });
  assert.deepEqual([data.model, data.settings, data.nodes[1].pieces], ["a model", { n: "2" }, [[" a", 3, 0.512], [" time", null]]]);
  const read = through(data);
  assert.deepEqual([read.title, read.current, read.drafts, read.question], ["A tale", "b", drafts, "Who?"]);
  const other = new Tree(read.nodes, read.current);
  assert.equal(other.text("b"), "Once upon a time");
  assert.deepEqual([other.nodes.get("b").seed, other.nodes.get("b").request], [7, undefined]);
});

test("who wrote what in a draft survives", () => {
  const tree = new Tree(nodes(), "b");
  const drafts = [[ROOT, "Once, "], ["b", "Once upon a time there"]];
  const marks = { b: "w9m7w6" };
  const read = through(exportTree(tree, drafts, { title: "A tale", marks }));
  assert.deepEqual([read.drafts, read.marks], [drafts, marks]);
  assert.deepEqual(through(file()).marks, {}, "older files have none");
  assert.deepEqual(through(exportTree(tree, drafts, { marks: { ...marks, c: "m9" } })).marks, marks);
  for (const wrong of [[], { b: 7 }, "w9"])
    assert.throws(() => through(exportTree(tree, drafts, { marks: wrong })), /who wrote a draft in this file/);
});

const node = (fields) => ({ id: "a", parent: ROOT, pieces: [["x", null]], ...fields });

for (const [data, message] of [
  [null, /not a tree/],
  [file({ version: 3 }), /not a tree/],
  [file({ version: 1 }), /not a tree/],
  [file({ nodes: null }), /not a tree/],
  [file({ nodes: [null] }), /text 1 in this file has no id/],
  [file({ nodes: [node({ id: ROOT })] }), /no id/],
  [file({ nodes: [node({ parent: "b" })] }), /text a in this file hangs on nothing/],
  [file({ nodes: [node({}), node({})] }), /two texts a/],
  [file({ nodes: [node({ pieces: undefined })] }), /its pieces is missing/],
  [file({ nodes: [node({ pieces: [["x", "y"]] })] }), /its pieces is \[/],
  [file({ nodes: [node({ pieces: [{ text: "x", ids: [], top: [{ id: 1, text: "y" }] }] })] }), /pieces/],
  [file({ nodes: [node({ parent: "b" }), node({ id: "b", parent: "a" })] }), /text a in this file comes before itself/],
  [file({ nodes: [node({ label: 7 })] }), /text a in this file can't be read: its label is 7/],
  [file({ nodes: [node({ created: 1e300 })] }), /created/],
  [file({ nodes: [node({ batch: "now" })] }), /batch/],
  [file({ nodes: [node({ settings: [1] })] }), /settings/],
  [file({ nodes: [node({ until: { unit: "pages", count: 1, from: 0 } })] }), /until/],
  [file({ nodes: [node({ end: 1 })] }), /end/],
  [file({ nodes: [node({ typed: "yes" })] }), /typed/],
  [file({ title: { a: 1 } }), /title/],
  [file({ nodes: [node({})], drafts: { b: "x" } }), /draft/],
  [file({ nodes: [node({})], drafts: { a: 1 } }), /draft/],
  [file({ drafts: [] }), /draft/],
  [file({ question: 7 }), /question/],
  [file({ conversation: [{ question: "Why?", answers: [], chosen: 0 }] }), /conversation/],
])
  test(`a file is refused: ${message}`, () => assert.throws(() => through(data), { name: "Error", message }));

test("every field of every node is checked", () => {
  const whole = exportTree(new Tree(nodes(), "b"), [["b", "x"]], { title: "A tale" });
  let refused = 0;
  const tried = [7, "x", "", null, true, [], [7], {}, 1e300, -1];
  const tryEach = (holder) => {
    for (const name of Object.keys(holder)) {
      const before = holder[name];
      for (const value of tried) {
        holder[name] = value;
        try {
          const read = through(whole);
          const tree = new Tree(read.nodes, read.current);
          for (const each of read.nodes) assert.deepEqual(repair([structuredClone(each)]), [], name);
          tree.text(tree.current);
          tree.places(ROOT);
        } catch (error) {
          assert.equal(error.constructor, Error, `${name} = ${JSON.stringify(value)}: ${error.stack}`);
          refused++;
        }
      }
      holder[name] = before;
    }
  };
  for (const holder of [whole, ...whole.nodes, ...whole.nodes.map((each) => each.pieces)]) tryEach(holder);
  assert(refused > 100, `${refused} were refused`);
});

test("stored nodes are repaired", () => {
  const [first, second] = nodes();
  const kept = [{ ...first, label: 7, story: "s" }, { ...second, parent: "gone", pieces: "x", batch: undefined }];
  assert.deepEqual(repair(kept), kept);
  assert.deepEqual([kept[0].label, kept[0].story, kept[1].parent, kept[1].pieces], [undefined, "s", ROOT, []]);
  assert.deepEqual(repair(kept), []);
});

test("a conversation about a story is in its file", () => {
  const conversation = toStored([{ question: "Why?", chosen: 0, answers: [{ request: "r", index: 0, after: 3, pieces: [{ text: "So.", ids: [1] }] }] }]);
  const read = through(exportTree(new Tree(nodes(), "b"), [], { conversation, question: "And" }));
  assert.deepEqual([read.conversation, read.question], [JSON.parse(JSON.stringify(conversation)), "And"]);
});
