// @ts-check
// Finding words in all that was ever written in a story: what was kept and what wasn't, what was discarded, what was typed. Pure.

import { ROOT, textOf } from "./tree.js";

const [BEFORE, BEHIND] = [30, 60]; // letters that are shown around what was found
const OVERLAP = 100; // letters of the text before a node, so that what begins there and ends in the node is found

// For some words, with any space between them, in capitals or not; null without words.
function patternOf(query) {
  const words = query.split(/\s+/).filter(Boolean).map((word) => word.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&"));
  return words.length ? new RegExp(words.join("\\s+"), "giu") : null;
}

// Where a text has it for the first time behind a place: {before, match, behind}; null where it hasn't.
function within(text, pattern, place = 0) {
  const found = [...text.matchAll(pattern)].find(({ 0: match, index }) => index + match.length > place);
  if (!found) return null;
  const { 0: match, index } = found;
  const end = index + match.length;
  return { before: text.slice(Math.max(0, index - BEFORE), index), match, behind: text.slice(end, end + BEHIND) };
}

// A text in which a server has found some words, whatever stands between them: {before, match, behind}. All of it is in `before` where
// the words are written otherwise, as without accents.
export function markMatch(text, query) {
  const pattern = new RegExp(query.match(/[\p{L}\p{N}]+/gu).join("[^\\p{L}\\p{N}]+"), "giu");
  return within(text, pattern) ?? { before: text, match: "", behind: "" };
}

const kindOf = ({ typed, kept, discarded }, isFollowed) =>
  discarded ? "discarded" : typed ? "typed" : kept || isFollowed ? "kept" : "not kept";

// What was found, the newest first: {id, kind, before, match, behind}. id: the node that has it. kind: `typed`, `kept`, `not kept`, `discarded`
// or `draft`. drafts: [id, text].
export function searchTree(tree, drafts, query) {
  const pattern = patternOf(query);
  if (!pattern) return [];
  const ends = new Map([[ROOT, ""]]); // the last letters up to each node
  for (const { id } of tree.nodes.values()) {
    const path = [];
    for (let each = id; !ends.has(each); each = tree.nodes.get(each).parent) path.push(each);
    for (const each of path.toReversed()) {
      const { parent, ...node } = tree.nodes.get(each);
      ends.set(each, (ends.get(parent) + textOf(node)).slice(-OVERLAP));
    }
  }
  const found = [];
  const rests = new Set(); // of texts that were found behind a place: later places have them, too
  for (const node of tree.nodes.values()) {
    const kind = kindOf(node, tree.children(node.id).length > 0);
    const before = ends.get(node.parent);
    const own = node.stem ? null : within(before + textOf(node), pattern, before.length);
    if (own) found.push({ id: node.id, kind, ...own });
    const rest = node.typed && within((node.passage ?? "") + (node.behind ?? ""), pattern);
    const key = rest && JSON.stringify(rest);
    if (rest && !own && !rests.has(key)) found.push({ id: node.id, kind, ...rest });
    rests.add(key);
  }
  for (const [id, text] of drafts) {
    const draft = within(text, pattern);
    if (draft) found.push({ id, kind: "draft", ...draft });
  }
  return found.reverse();
}
