// Where the nodes of a drawn tree stand: layout.js.

import assert from "node:assert/strict";
import { test } from "node:test";
import { fitText, layout } from "../../srb/web/desk/tree_layout.js";
import { ROOT, Tree } from "../../srb/web/story/tree.js";

let order = 0;
const node = (id, parent, others = {}) => ({ id, parent, pieces: [{ text: id, ids: null }], batch: 1, order: order++, ...others });
const kept = (id, parent) => node(id, parent, { kept: true });

const drawn = (nodes, isNamed) => {
  const said = layout(new Tree(nodes), isNamed);
  return { ...said, at: Object.fromEntries(said.places.map((place) => [place.id, place])) };
};

const grouped = (all, key) => [...new Set(all.map(key))].map((value) => all.filter((each) => key(each) === value));

// A story of so many nodes with alternatives that weren't kept, and a way back to the beginning now and then.
function long(count, alternatives = 3) {
  const nodes = [];
  for (let k = 0; nodes.length < count; k++) {
    const parent = k === 0 ? ROOT : k % 10 ? `k${k - 1}` : `k${Math.floor(k / 2)}`;
    nodes.push(kept(`k${k}`, parent), ...Array.from({ length: alternatives }, (_, i) => node(`k${k} ${i}`, parent)));
  }
  return nodes;
}

test("the longest branch is a straight line, and deeper nodes are further right", () => {
  const { at } = drawn([kept("a", ROOT), kept("b", "a"), kept("short", "a"), kept("c", "b"), kept("d", "c")]);
  assert.deepEqual(["b", "c", "d"].map((id) => at[id].y), [at.a.y, at.a.y, at.a.y]);
  assert.ok(at.short.y > at.a.y && at.short.x === at.b.x);
  assert.ok(at[ROOT].x < at.a.x && at.a.x < at.b.x && at.b.x < at.c.x);
  assert.equal(at.short.parent, "a");
});

test("alternatives without continuations are small, below the branch, in order, without discarded ones", () => {
  const nodes = [kept("a", ROOT), node("x", ROOT), node("y", ROOT), node("gone", ROOT, { discarded: true }), kept("other", ROOT)];
  const { at, places } = drawn(nodes);
  assert.deepEqual(places.map(({ id }) => id), [ROOT, "a", "x", "y", "other"]);
  assert.deepEqual(["a", "x", "y", "other"].map((id) => at[id].isSmall), [false, true, true, false]);
  assert.ok(at.a.y < at.x.y && at.x.y < at.y.y && at.y.y < at.other.y);
});

test("nodes don't overlap, and lines don't cross nodes", () => {
  for (const nodes of [long(400), long(400, 0), long(300, 8)]) {
    const { places, at, width, height } = drawn(nodes);
    assert.equal(places.length, nodes.length + 1);
    const columns = grouped(places, ({ x }) => x);
    for (const column of columns) {
      const ys = column.map(({ y }) => y).sort((a, b) => a - b);
      ys.forEach((y, k) => assert.ok(k === 0 || y - ys[k - 1] >= 11));
    }
    // A line leaves to the right of its parent, so between two columns those of different parents mustn't overlap.
    for (const column of columns) {
      const families = grouped(column.filter(({ parent }) => parent), ({ parent }) => parent);
      const ends = families.map((children) => [at[children[0].parent].y, Math.max(...children.map(({ y }) => y))]).sort((a, b) => a[0] - b[0]);
      ends.forEach(([from], k) => assert.ok(k === 0 || from > ends[k - 1][1], `${from} ${ends[k - 1]}`));
    }
    for (const { x, y } of places) assert.ok(x > 0 && x < width && y > 0 && y < height);
  }
});

test("named nodes and ends of branches have labels, others have one if there is room", () => {
  const { places, at } = drawn(long(300, 0), (id) => id === "k3");
  const labelled = places.filter(({ room }) => room);
  for (const { y, x, room, id } of labelled)
    for (const other of labelled) assert.ok(other.id === id || other.y !== y || other.x < x || other.x >= x + room, `${id} ${other.id}`);
  assert.ok(at.k3.room > 0);
  assert.ok(places.filter(({ id }) => !places.some(({ parent }) => parent === id)).every(({ room }) => room));
  const { places: few } = drawn([kept("a", ROOT), kept("b", "a")]);
  assert.ok(few.every(({ room }) => room > 100), "where there is room, all have one");
});

test("a named alternative has a label without a continuation", () => {
  const nodes = [kept("a", ROOT), node("x", ROOT), node("star", ROOT)];
  const { at } = drawn(nodes, (id) => id === "star");
  assert.deepEqual([at.star.isSmall, at.star.room > 0, at.x.isSmall], [false, true, true]);
});

test("labels are shortened by whole words, also in wider scripts", () => {
  assert.equal(fitText(" The\nlamp ", 150), "The lamp");
  assert.equal(fitText("The lighthouse keeper slept", 120), "The lighthouse…");
  assert.equal(fitText("Donaudampfschifffahrt", 50), "Donaud…");
  assert.equal(fitText("灯台守は眠っていた", 60), "灯台守…");
  assert.equal(fitText("", 60), "");
});

test("thousands of nodes are laid out quickly", () => {
  const row = Array.from({ length: 1000 }, (_, k) => kept(`r${k}`, k ? `r${k - 1}` : ROOT));
  for (const nodes of [long(2000), row]) {
    const tree = new Tree(nodes);
    const before = performance.now();
    layout(tree);
    assert.ok(performance.now() - before < 1000);
  }
});
