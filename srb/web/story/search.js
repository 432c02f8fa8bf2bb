// @ts-check
// Search everything that was written in a story: kept or not, discarded or typed.

import { ROOT, textOf } from "./tree.js";

const [BEFORE, AFTER] = [30, 60]; // characters to show around a match
const OVERLAP = 100; // characters before a node that a match may start in

/** Make a pattern of words with any space between them, ignoring case; null without words. */
function patternOf(query) {
  const words = query.split(/\s+/).filter(Boolean).map((word) => word.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&"));
  return words.length ? new RegExp(words.join("\\s+"), "giu") : null;
}

/** Find the first match that ends after a place: {before, match, after}, or null. */
function within(text, pattern, place = 0) {
  const found = [...text.matchAll(pattern)].find(({ 0: match, index }) => index + match.length > place);
  if (!found) return null;
  const { 0: match, index } = found;
  const end = index + match.length;
  return { before: text.slice(Math.max(0, index - BEFORE), index), match, after: text.slice(end, end + AFTER) };
}

/**
 * Mark the match in a text that a server found, whatever is between the words. If the words are spelled differently,
 * as without accents, all of the text is in `before`.
 * @param {string} text
 * @param {string} query
 * @returns {{ before: string, match: string, after: string }}
 */
export function markMatch(text, query) {
  const pattern = new RegExp((query.match(/[\p{L}\p{N}]+/gu) ?? []).join("[^\\p{L}\\p{N}]+"), "giu");
  return within(text, pattern) ?? { before: text, match: "", after: "" };
}

const kindOf = ({ typed, kept, discarded }, isFollowed) =>
  discarded ? "discarded" : typed ? "typed" : kept || isFollowed ? "kept" : "not kept";

/**
 * Search a story.
 * @param {import("./tree.js").Tree} tree
 * @param {[place: string, text: string][]} drafts
 * @param {string} query
 * @returns {{ id: string, kind: string, before: string, match: string, after: string }[]} the newest first. `id` is
 *   the node; `kind` is `typed`, `kept`, `not kept`, `discarded` or `draft`.
 */
export function searchTree(tree, drafts, query) {
  const pattern = patternOf(query);
  if (!pattern) return [];
  const ends = new Map([[ROOT, ""]]); // the last characters up to each node
  for (const { id } of tree.nodes.values()) {
    const path = [];
    for (let each = id; !ends.has(each); each = tree.nodes.get(each).parent) path.push(each);
    for (const each of path.toReversed()) {
      const { parent, ...node } = tree.nodes.get(each);
      ends.set(each, (ends.get(parent) + textOf(node)).slice(-OVERLAP));
    }
  }
  const found = [];
  const rests = new Set(); // matches after a place, which later places have, too
  for (const node of tree.nodes.values()) {
    const kind = kindOf(node, tree.children(node.id).length > 0);
    const before = ends.get(node.parent) ?? "";
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
