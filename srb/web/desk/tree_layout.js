// @ts-check
// The layout of a drawn tree: deeper nodes are further right. Lengths are in pixels.
//
// A branch is a straight line. Of several continuations, the longest goes straight on. The others start below it, as
// close as there is room: first the alternatives without continuations, which are small, then other branches.

import { ROOT } from "../story/tree.js";

/**
 * @typedef {object} Place
 * @property {string} id
 * @property {string | null} parent
 * @property {number} depth
 * @property {number} x
 * @property {number} y
 * @property {boolean} isSmall whether it is an unnamed alternative without continuations
 * @property {number} room the width of its label; 0 if it has none
 */

const [CLOSEST, WIDEST] = [28, 150]; // between a node and the next
const USUAL = 1500; // of a whole way, where that is possible
const [LINE, SMALL] = [36, 11]; // below the last thing: of a way, which has labels above it; of an alternative that nothing follows
const LABEL = 150;
const GAP = 10; // behind a label
const BELOW = 6; // of a way, its dots
export const MARGIN = 16;

const [LETTER, SIGN] = [6.6, 13.5]; // how wide the letters of a label are; those of scripts with a sign for a word or a syllable

/**
 * Shorten a text to a width, at a word if possible.
 * @param {string} text
 * @param {number} room
 * @returns {string}
 */
export function fitText(text, room) {
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
function labels(way, pitch, isNamed) {
  const room = (columns) => Math.min(LABEL, columns * pitch - GAP);
  const perLabel = Math.ceil(LABEL / pitch);
  const named = way.map(isNamed);
  const rooms = [];
  let next = Infinity; // the next column with a label
  for (let k = way.length - 1; k >= 0; k--) {
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
  const below = new Map(); // by id: {ways, alternatives}
  for (const [id, depth] of depths) {
    const children = tree.children(id).filter((node) => !node.stem || tree.children(node.id).length);
    const goesOn = (node) => isWay(tree, node);
    below.set(id, { ways: children.filter(goesOn), alternatives: children.filter((node) => !goesOn(node)) });
    for (const node of children) depths.set(node.id, depth + 1); // it grows during the loop
  }
  const lengths = new Map(); // of the longest way on from each
  for (const id of [...depths.keys()].reverse()) {
    const { ways } = below.get(id);
    ways.sort((a, b) => lengths.get(b.id) - lengths.get(a.id));
    lengths.set(id, 1 + (lengths.get(ways[0]?.id) ?? 0));
  }

  const columns = lengths.get(ROOT);
  const pitch = Math.min(WIDEST, Math.max(CLOSEST, Math.floor(USUAL / columns)));
  const perLabel = Math.ceil(LABEL / pitch);
  const free = new Array(columns + perLabel).fill(0); // how far down each column has something
  const found = new Map();
  const put = (id, parent, y, room, isSmall = false) => {
    const depth = depths.get(id);
    found.set(id, { id, parent, depth, x: MARGIN + depth * pitch, y, isSmall, room });
  };
  const waiting = [{ id: ROOT, parent: null }]; // what is nearest to the end of a way comes first, so that no lines cross

  const putWay = ({ id: first, parent }) => {
    const way = [];
    for (let id = first; id; id = below.get(id).ways[0]?.id) way.push(id);
    const rooms = labels(way, pitch, isNamed);
    const from = depths.get(first);
    const to = from + way.length + (rooms.at(-1) ? perLabel - 1 : 0);
    const y = Math.max(...free.slice(from, to)) + LINE;
    free.fill(y + BELOW, from, to);
    way.forEach((id, k) => put(id, way[k - 1] ?? parent, y, rooms[k]));
    for (const id of way) {
      const { ways, alternatives } = below.get(id);
      waiting.push(...[...alternatives, ...ways.slice(1)].reverse().map((node) => ({ id: node.id, parent: id })));
    }
  };
  const putAlternative = ({ id, parent }) => {
    const column = depths.get(id);
    free[column] += SMALL;
    put(id, parent, free[column], 0, true);
  };
  while (waiting.length) {
    const next = waiting.pop();
    const isAlone = next.id !== ROOT && !isWay(tree, tree.nodes.get(next.id)) && !isNamed(next.id);
    if (isAlone) putAlternative(next);
    else putWay(next);
  }
  const places = [...depths.keys()].map((id) => found.get(id));
  return { places, width: 2 * MARGIN + columns * pitch + LABEL, height: Math.max(...free) + MARGIN };
}

/** Whether a node is worth returning to, as in `Tree.places`. */
const isWay = (tree, node) => node.typed || node.kept || tree.children(node.id).length > 0;
