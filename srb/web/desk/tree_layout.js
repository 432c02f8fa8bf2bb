// @ts-check
// The layout of a drawn tree: deeper nodes are further right. Lengths are in pixels.
//
// A branch is a straight line. Of several continuations, the longest goes straight on. The others start below it, as
// close as there is room: first the alternatives without continuations, which are small, then other branches.

import { ROOT } from "../story/tree.js";

/**
 * A small place is an unnamed alternative without continuations. `room` is the width of a label; 0 without one.
 * @typedef {{ id: string, parent: string | null, depth: number, x: number, y: number, isSmall: boolean, room: number }} Place
 */

const [CLOSEST, WIDEST] = [28, 150]; // between two nodes
const USUAL = 1500; // of a whole branch, if possible
const [LINE, SMALL] = [36, 11]; // height of a branch with labels; of a small alternative
const LABEL = 150;
const GAP = 10; // after a label
const BELOW = 6; // a branch, for its dots
export const MARGIN = 16;

const [LETTER, SIGN] = [6.6, 13.5]; // width of a letter; of a CJK character

/** Shorten a text to a width, at a word if possible. */
export function fitText(/** @type {string} */ text, /** @type {number} */ room) {
  const letters = [...text.trim().replace(/\s+/g, " ")];
  let left = room;
  const k = letters.findIndex((letter) => (left -= letter >= "\u1100" ? SIGN : LETTER) < 0);
  if (k < 0) return letters.join("");
  const words = letters.slice(0, Math.max(0, k - 1)).join("");
  return `${words.replace(/\s+\S*$/, "").trimEnd() || words}…`;
}

/**
 * Return the widths of a branch's labels, by column; 0 is no label. Named nodes always have labels. Others have one
 * if there is room, the last one first.
 */
function labels(branch, pitch, isNamed) {
  const room = (columns) => Math.min(LABEL, columns * pitch - GAP);
  const perLabel = Math.ceil(LABEL / pitch);
  const named = branch.map(isNamed);
  const rooms = [];
  let next = Infinity; // the next column with a label
  for (let k = branch.length - 1; k >= 0; k--) {
    const hasRoom = next - k >= perLabel && !named.slice(Math.max(0, k - perLabel + 1), k).some(Boolean);
    rooms[k] = named[k] || hasRoom ? room(next - k) : 0;
    if (rooms[k]) next = k;
  }
  return rooms;
}

/**
 * Place all nodes, parents first.
 * @param {import("../story/tree.js").Tree} tree
 * @param {(id: string) => boolean} [isNamed] whether a node must have a label
 * @returns {{ places: Place[], width: number, height: number }}
 */
export function layout(tree, isNamed = (_id) => false) {
  const depths = new Map([[ROOT, 0]]);
  const depthOf = (id) => depths.get(id) ?? 0;
  const below = new Map(); // by id: {branches, alternatives}
  for (const [id, depth] of depths) {
    const children = tree.children(id).filter((node) => !node.stem || tree.children(node.id).length);
    const goesOn = (node) => isBranch(tree, node);
    below.set(id, { branches: children.filter(goesOn), alternatives: children.filter((node) => !goesOn(node)) });
    for (const node of children) depths.set(node.id, depth + 1); // it grows during the loop
  }
  const lengths = new Map(); // longest continuation of each
  for (const id of [...depths.keys()].reverse()) {
    const { branches } = below.get(id);
    branches.sort((a, b) => lengths.get(b.id) - lengths.get(a.id));
    lengths.set(id, 1 + (lengths.get(branches[0]?.id) ?? 0));
  }

  const columns = lengths.get(ROOT);
  const pitch = Math.min(WIDEST, Math.max(CLOSEST, Math.floor(USUAL / columns)));
  const perLabel = Math.ceil(LABEL / pitch);
  const free = new Array(columns + perLabel).fill(0); // the free height of each column
  const found = new Map();
  const put = (id, parent, y, room, isSmall = false) => {
    const depth = depthOf(id);
    found.set(id, { id, parent, depth, x: MARGIN + depth * pitch, y, isSmall, room });
  };
  // From the end of a branch, so that no lines cross.
  const waiting = /** @type {Pick<Place, "id" | "parent">[]} */ ([{ id: ROOT, parent: null }]);

  const putBranch = ({ id: first, parent }) => {
    const branch = [];
    for (let id = first; id; id = below.get(id).branches[0]?.id) branch.push(id);
    const rooms = labels(branch, pitch, isNamed);
    const from = depthOf(first);
    const to = from + branch.length + (rooms.at(-1) ? perLabel - 1 : 0);
    const y = Math.max(...free.slice(from, to)) + LINE;
    free.fill(y + BELOW, from, to);
    branch.forEach((id, k) => put(id, branch[k - 1] ?? parent, y, rooms[k]));
    for (const id of branch) {
      const { branches, alternatives } = below.get(id);
      waiting.push(...[...alternatives, ...branches.slice(1)].reverse().map((node) => ({ id: node.id, parent: id })));
    }
  };
  const putAlternative = ({ id, parent }) => {
    const column = depthOf(id);
    free[column] += SMALL;
    put(id, parent, free[column], 0, true);
  };
  while (waiting.length) {
    const next = /** @type {Pick<Place, "id" | "parent">} */ (waiting.pop());
    const isAlone = next.id !== ROOT && !isBranch(tree, tree.nodes.get(next.id)) && !isNamed(next.id);
    if (isAlone) putAlternative(next);
    else putBranch(next);
  }
  const places = [...depths.keys()].map((id) => found.get(id));
  return { places, width: 2 * MARGIN + columns * pitch + LABEL, height: Math.max(...free) + MARGIN };
}

/** Whether a node is worth returning to, as in `Tree.places`. */
const isBranch = (tree, node) => node.typed || node.kept || tree.children(node.id).length > 0;
