// The story's tree, tree.js, and how it is drawn, places.js.

import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { webcrypto } from "node:crypto";
import { rows } from "../../srb/web/desk/tree_list.js";
import { suggestTitle } from "../../srb/web/story/titles.js";
import { ROOT, textOf, Tree } from "../../srb/web/story/tree.js";

globalThis.crypto ??= webcrypto;

const piece = (text, ...ids) => ({ text, ids, p: 0.5, top: [{ id: 9, text: " other", p: 0.4 }] });

function write(tree, text) {
  const node = tree.written(text);
  return node.id ?? tree.add(node).id;
}

let tree, typed, said;

beforeEach(() => {
  tree = new Tree();
  typed = write(tree, "Once upon");
  tree.nodes.get(typed).pieces[0].ids = [1, 2];
  tree.nodes.get(typed).whole = true;
  said = tree.add({ parent: typed, pieces: [piece(" a", 3), piece(" time", 4)], order: 1, batch: 5 }).id;
});

test("a story is named by its first heading or words", () => {
  const called = (text) => suggestTitle({ pieces: [piece(text)] });
  assert.equal(called("\n# The lamp\n\nAda carried the oil."), "The lamp");
  assert.equal(called("Ada\ncarried the oil."), "Ada carried the oil.");
  assert.equal(called("Ada carried the oil up the hundred and twelve steps, slowly."), "Ada carried the oil up the hundred and twelve");
});

test("a path of known ids is sent as ids", () => {
  assert.equal(tree.text(said), "Once upon a time");
  assert.deepEqual(tree.prompt(said), [1, 2, 3, 4]);
});

test("the first token of a healed node replaces the one before", () => {
  tree.nodes.get(said).healed = true;
  const fork = tree.add(tree.forked(said, 0, { id: 9, text: " sea", p: 0.4 })).id;
  const empty = tree.add({ parent: typed, healed: true }).id;
  assert.deepEqual([said, fork, empty].map((id) => tree.prompt(id)), [[1, 3, 4], [1, 9], [1, 2]]);
  assert.equal(tree.text(fork), "Once upon sea");
});

test("a path with unknown ids is sent as text", () => {
  tree.nodes.get(said).pieces[1].ids = null;
  assert.equal(tree.prompt(said), "Once upon a time");
  tree.nodes.get(said).pieces[1].ids = [4];
  tree.nodes.get(typed).whole = false;
  assert.equal(tree.prompt(said), "Once upon a time");
  assert.equal(tree.prompt(ROOT), "");
});

test("ids of a whole text include the text before", () => {
  tree.go(said);
  const more = write(tree, "Once upon a time there");
  assert.equal(tree.prompt(more), "Once upon a time there");
  Object.assign(tree.nodes.get(more), { pieces: [{ text: " there", ids: [11, 12, 13] }], whole: true });
  assert.deepEqual(tree.prompt(more), [11, 12, 13]);
});

test("an edit branches after the unchanged part", () => {
  tree.go(said);
  const changed = write(tree, "Once upon the sea");
  tree.go(changed);
  const other = write(tree, "Twice");
  assert.equal(tree.nodes.get(changed).parent, typed);
  assert.equal(textOf(tree.nodes.get(changed)), " the sea");
  assert.equal(tree.nodes.get(other).parent, ROOT);
  assert.equal(write(tree, "Once upon the sea"), changed);
  assert.equal(write(tree, "Once upon"), typed);
});

test("another word continues from its token, if that starts where the text before ends", () => {
  const choice = { id: 9, text: " sea", p: 0.4 };
  const [whole, part] = [false, true].map((isPart) => tree.add(tree.chosen(said, choice, isPart)).id);
  assert.deepEqual(tree.prompt(whole), [...tree.prompt(said), 9]);
  assert.equal(tree.prompt(part), `${tree.text(said)} sea`);
});

test("a fork has the same beginning", () => {
  const fork = tree.add(tree.forked(said, 1, { id: 9, text: " \ufffd", p: 0.4 })).id;
  assert.equal(tree.text(fork), "Once upon a ");
  assert.deepEqual(tree.prompt(fork), [1, 2, 3, 9]);
  assert.equal(tree.nodes.get(fork).parent, typed);
  assert.equal(tree.text(said), "Once upon a time");
});

test("the newest batch comes first in its own order", () => {
  for (const [batch, order] of [[7, 1], [5, 0], [7, 0]]) tree.add({ parent: typed, batch, order, label: `${batch}.${order}` });
  assert.deepEqual(tree.children(typed).map((node) => node.label ?? "said"), ["7.0", "7.1", "5.0", "said"]);
});

test("a place in the middle has the text after it, which follows what is kept", () => {
  const own = tree.written("Once", { behind: " upon", marks: "wwwwmmmmm" });
  assert.deepEqual(own, { parent: ROOT, pieces: [{ text: "Once", ids: null }], typed: true, behind: " upon", marks: "w4m5" });
  const place = tree.add(own).id;
  assert.equal(tree.written("Once", { behind: " upon" }).id, place);
  const kept = tree.add({ parent: place, pieces: [piece(" more", 7)] }).id;
  assert.deepEqual([tree.text(kept), tree.after(kept), tree.marks(kept)], ["Once more", " upon", "wwwwmmmmmmmmmm"]);
  tree.go(kept);
  assert.equal(tree.written("Once more", { behind: " upon" }).id, kept, "there one goes on");
  const again = tree.add(tree.written("Once more", { behind: " and upon" }));
  assert.deepEqual([again.parent, again.pieces, tree.after(again.id)], [kept, [], " and upon"]);
  assert.equal(tree.prompt(again.id), "Once more");
  const whole = tree.add(tree.written("Once more upon"));
  assert.deepEqual([whole.parent, tree.text(whole.id), tree.after(whole.id)], [kept, "Once more upon", ""], "an edit behind it keeps it");
});

test("a version replaces its passage, and is sent as text", () => {
  const place = tree.add(tree.written("Once upon", { passage: " a time", behind: " it was" })).id;
  const kept = tree.add({ parent: place, pieces: [piece(" an hour", 7, 8)] }).id;
  assert.deepEqual([tree.after(place), tree.after(kept), tree.prompt(kept)], [" a time it was", " it was", "Once upon an hour"]);
  tree.go(place);
  assert.equal(tree.written("Once upon", { passage: " a time", behind: " it was" }).id, place, "more versions come there");
  assert.equal(tree.written("Once upon", { behind: " a time it was" }).id, undefined, "what comes before the passage doesn't");
});

test("the space before the cursor is repeated after generated text", () => {
  const place = tree.add(tree.written("It rained. ", { behind: "He left." })).id;
  const below = (text) => tree.after(tree.add({ parent: place, pieces: [piece(text, 7)] }).id);
  assert.deepEqual([place, ...["She stayed.", "She stayed. ", ""]].map((each, k) => (k ? below(each) : tree.after(each))), [
    "He left.", " He left.", "He left.", "He left.",
  ]);
});

test("the path to the current place is straight", () => {
  const add = (parent, id) => tree.add({ id, parent, kept: true, batch: Number(id) }).id;
  for (const [parent, id] of [[said, "7"], [said, "8"], ["7", "9"], [ROOT, "6"]]) add(parent, id);
  tree.go("7");
  const drawn = rows(tree).map(({ id, column, isBranch, goesOn }) => [id.length > 1 ? "" : id, column, isBranch, goesOn]);
  assert.deepEqual(drawn, [
    ["", 0, false, true], // the root
    ["6", 1, true, false],
    ["", 0, false, true],
    ["", 0, false, true],
    ["8", 1, true, false],
    ["7", 0, false, true],
    ["9", 0, false, false],
  ]);
});

test("looking at a node costs its children and not the tree", () => {
  let reads = 0;
  const nodes = Array.from({ length: 1000 }, (_, k) => ({
    id: `n${k}`,
    pieces: [],
    typed: true,
    get parent() {
      reads++;
      return k ? `n${k - 1}` : ROOT;
    },
  }));
  const other = new Tree(nodes);
  reads = 0;
  assert.deepEqual(other.children("n500").map((node) => node.id), ["n501"]);
  other.places(ROOT);
  assert(reads < 10, `${reads} reads`);
});

test("a stem has the tokens of a beginning, and continuations are alternatives of its parent", () => {
  const tree = new Tree();
  const place = tree.add({ parent: ROOT, pieces: [{ text: "Once", ids: [1] }], typed: true, whole: true, behind: " The end." }).id;
  const pieces = [" It", " rained", ".", "\n\n", "Nobody"].map((text, k) => ({ text, ids: [k + 2] }));
  const whole = tree.add({ parent: place, pieces }).id;
  const stem = tree.add(tree.stem(whole, " It rained.".length)).id;
  const like = tree.add({ parent: stem, pieces: [{ text: " Ada slept.", ids: [9] }] }).id;
  assert.deepEqual([tree.text(stem), tree.prompt(like)], ["Once It rained.", [1, 2, 3, 4, 9]]);
  assert.deepEqual([tree.stem(whole, " It rained.".length).id, tree.stem(whole, 0).id], [stem, place], "there is one of each");
  assert.deepEqual([tree.start(stem), tree.start(place)], [place, place]);
  assert.deepEqual([place, stem].map((id) => tree.alternatives(id).map((node) => node.id)), [[whole], [like]]);
  assert.equal(tree.after(like), " The end.");
  const heard = tree.add({ parent: place, pieces: [{ text: " It snowed. Nobody", ids: [20, 21] }] }).id; // by a server, in one piece
  assert.deepEqual(tree.stem(heard, " It snowed.".length).pieces, [{ text: " It snowed.", ids: null }]);
  const nested = tree.add(tree.stem(like, " Ada slept.".length)).id;
  assert.deepEqual([tree.start(nested), tree.text(nested)], [place, "Once It rained. Ada slept."]);
});
