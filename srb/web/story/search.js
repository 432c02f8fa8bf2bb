// @ts-check
// Search everything that was written in a story: kept or not, discarded or typed.

import { ROOT, textOf } from "./tree.js";

const [BEFORE, AFTER] = [30, 60]; // characters to show around a match
const OVERLAP = 100; // characters before a node that a match may start in

/**
 * @typedef {object} How how to search
 * @property {boolean} [isCaseSensitive]
 * @property {boolean} [isWholeWords] whether matches start and end at the ends of words
 */

const LETTER = "[\\p{L}\\p{M}\\p{N}]";

const QUOTES = ["'‘’", '"“”'];

/** Return a pattern for a character: straight or curly quotes, an accented letter in one character or in two. */
function patternFor(character) {
  const quotes = QUOTES.find((each) => each.includes(character));
  if (quotes) return `[${quotes}]`;
  const apart = character.normalize("NFD");
  if (apart !== character) return `(?:${character}|${apart})`;
  return character.replace(/[\\^$.*+?()[\]{}|/]/, "\\$&");
}

/** Return a pattern for a word, which may have soft hyphens. */
const patternForWord = (word) => Array.from(word, patternFor).join("\u00ad?");

/** Make a pattern of words with any space between them, or of spaces alone; null without either. */
function patternOf(query, /** @type {How} */ { isCaseSensitive = false, isWholeWords = false } = {}) {
  if (!query) return null;
  const [, before, words, after] = /^(\s*)(.*?)(\s*)$/su.exec(query.normalize("NFC")) ?? [];
  const spaces = (/** @type {string} */ { length }) => (length > 1 ? `[^\\S\\n]{${length},}` : length ? "[^\\S\\n]" : "");
  const [start, end] = isWholeWords ? [`(?<!${LETTER})`, `(?!${LETTER})`] : ["", "(?![\u0300-\u036f])"];
  const core = words && start + words.split(/\s+/).map(patternForWord).join("\\s+") + end;
  return new RegExp(spaces(before) + core + spaces(after), isCaseSensitive ? "gu" : "giu");
}

/** Find every place of a text that matches. @returns {[from: number, to: number][]} */
export function places(text, query, how) {
  const pattern = patternOf(query, how);
  return pattern ? Array.from(text.matchAll(pattern), ({ 0: match, index }) => [index, index + match.length]) : [];
}

/** Return the index of the next or previous place, seen from a selection. After the last place comes the first. */
export function step(all, [from, to], by) {
  const isAt = all.some((each) => each[0] === from && each[1] === to);
  const k = by > 0 ? all.findIndex((each) => each[0] >= (isAt ? to : from)) : all.findLastIndex((each) => each[1] <= from);
  return k >= 0 ? k : by > 0 ? 0 : all.length - 1;
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
 * @returns {{ before: string, match: string, after: string }}
 */
export function markMatch(text, query) {
  const pattern = new RegExp((query.match(/[\p{L}\p{N}]+/gu) ?? []).join("[^\\p{L}\\p{N}]+"), "giu");
  return within(text, pattern) ?? { before: text, match: "", after: "" };
}

const kindOf = ({ typed, kept, discarded }, isFollowed) =>
  discarded ? "discarded" : typed ? "typed" : kept || isFollowed ? "kept" : "not kept";

/**
 * @param {import("./tree.js").Tree} tree
 * @param {[place: string, text: string][]} drafts
 * @param {string} query
 * @param {How} [how]
 * @returns {{ id: string, kind: string, before: string, match: string, after: string }[]} the newest first. `id` is
 *   the node; `kind` is `typed`, `kept`, `not kept`, `discarded` or `draft`.
 */
export function searchTree(tree, drafts, query, how) {
  const pattern = patternOf(query.trim(), how);
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
