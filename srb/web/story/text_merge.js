// @ts-check
// Changes of a text, and what two tabs or devices have made of the same text: each change of one is made in the other's
// text, too. All that both have written is there once. Where both have replaced the same words, both words stand.

import { ChangeSet, diff } from "../vendor/codemirror.js";
import { WRITER } from "./authorship.js";

/**
 * @typedef {{ from: number, to: number, at: number, end: number }} Part a part of a text, which the part from `at` to
 *   `end` of another one replaces
 */

const LETTER = String.raw`[[\p{L}\p{M}\p{N}]--[\p{sc=Han}\p{sc=Hiragana}\p{sc=Katakana}\p{sc=Thai}\p{sc=Lao}\p{sc=Khmer}\p{sc=Myanmar}]]`;
const WORD = new RegExp(`${LETTER}+(?:['’]${LETTER}+)*|[^]`, "gv");
const STARTS = new RegExp(`^${LETTER}`, "v");
const ENDS = new RegExp(`${LETTER}$`, "v");
const REWRITTEN = 2; // letters that are gone from a word that is another one then
const LIMITS = { scanLimit: 1000, timeout: 100 }; // milliseconds; beyond these, more counts as replaced
const MOST_KINDS = 0xd000; // of lines or words, each of which stands for one character
const MOST_LETTERS = 1000; // in a passage that is compared letter by letter

const splitLines = (text) => text.split(/(?<=\n)/);
const splitWords = (text) => text.match(WORD) ?? [];
const splitLetters = (text) => [...text];

/** How many characters two texts have in common at their beginnings, or at their ends. */
function common(a, b, isEnd = false) {
  let count = 0;
  const cut = (text, step) => (isEnd ? text.slice(text.length - count - step, text.length - count) : text.slice(count, count + step));
  for (let step = 2 ** 20; step >= 1; step /= 2)
    while (count + step <= Math.min(a.length, b.length) && cut(a, step) === cut(b, step)) count += step;
  return count;
}

/** Return the single change between two texts, as CodeMirror takes it. */
export function change(before, after) {
  const from = common(before, after);
  const same = common(before.slice(from), after.slice(from), true);
  return { from, to: before.length - same, insert: after.slice(from, after.length - same) };
}

/** Compare what differs by lines, then by words, and then by letters. */
function compare(before, after, levels = [splitLines, splitWords, splitLetters]) {
  const from = before.lastIndexOf("\n", common(before, after) - 1) + 1;
  const same = common(before.slice(from), after.slice(from), true);
  const rest = same && before.length - (before.indexOf("\n", before.length - same) + 1 || before.length); // whole lines
  return compareParts([before, after], { from, to: before.length - rest, at: from, end: after.length - rest }, levels);
}

/**
 * @param {string[]} texts
 * @param {Part} part
 * @param {((text: string) => string[])[]} levels
 * @returns {Part[]}
 */
function compareParts(texts, { from, to, at, end }, levels) {
  const [split, ...finer] = levels;
  const [before, after] = [texts[0].slice(from, to), texts[1].slice(at, end)];
  if (!before || !after) return before || after ? [{ from, to, at, end }] : [];
  if (!split || (split === splitLetters && to - from + end - at > MOST_LETTERS)) return [{ from, to, at, end }];
  const kinds = new Map();
  const [old, now] = [before, after].map(split);
  const [a, b] = [old, now].map((all) => all.map((each) => String.fromCharCode(kinds.get(each) ?? kinds.set(each, kinds.size).size - 1)).join(""));
  if (kinds.size > MOST_KINDS) return [{ from, to, at, end }];
  const sums = (sum, all) => [sum, ...all.map((each) => (sum += each.length))];
  const [starts, places] = [sums(from, old), sums(at, now)];
  const all = diff(a, b, LIMITS);
  const removed = all.reduce((sum, { fromA, toA }) => sum + starts[toA] - starts[fromA], 0);
  if (split === splitLetters && removed >= REWRITTEN && removed * 2 >= before.length) return [{ from, to, at, end }]; // another word
  const found = all.flatMap((each) => (finer.length && each.toA - each.fromA === each.toB - each.fromB ? oneByOne(each) : [each]));
  return found.flatMap(({ fromA, toA, fromB, toB }) => compareParts(texts, { from: starts[fromA], to: starts[toA], at: places[fromB], end: places[toB] }, finer));
}

/** A difference of as many lines or words as there were: each has become another one. */
const oneByOne = ({ fromA, toA, fromB }) =>
  Array.from({ length: toA - fromA }, (_, k) => ({ fromA: fromA + k, toA: fromA + k + 1, fromB: fromB + k, toB: fromB + k + 1 }));

/** Return the parts of two texts that differ, as whole words. */
export const changedParts = (before, after) => compare(before, after, [splitLines, splitWords]);

/** Return the changes between two texts: small ones, wherever they were made. Replaced words in a row are one. */
export function difference(before, after) {
  const parts = /** @type {Part[]} */ ([]);
  const isReplaced = ({ from, to, at, end }) => from < to && at < end;
  for (const part of compare(before, after)) {
    const last = parts.at(-1);
    const isNext = last && isReplaced(last) && isReplaced(part) && /^ +$/.test(before.slice(last.to, part.from));
    if (isNext) Object.assign(last, { to: part.to, end: part.end });
    else parts.push(part);
  }
  return ChangeSet.of(parts.map(({ from, to, at, end }) => ({ from, to, insert: after.slice(at, end) })), before.length, "\n");
}

/** Return a text after some changes. */
export function applied(text, changes) {
  const parts = partsOf(changes);
  const done = parts.map(({ from, insert }, k) => text.slice(parts[k - 1]?.to ?? 0, from) + insert);
  return done.join("") + text.slice(parts.at(-1)?.to ?? 0);
}

/**
 * Compose change sets, or their JSON, that follow each other. Returns null if one of them is unknown, or doesn't follow.
 * @returns {ChangeSet | null}
 */
export function composed(all) {
  const sets = /** @type {any[]} */ (all.map((each) => (Array.isArray(each) ? ChangeSet.fromJSON(each) : each)));
  return sets.slice(1).reduce((sum, each) => (sum && each && sum.newLength === each.length ? sum.compose(each) : null), sets[0] ?? null);
}

/** Return the changes that lead from a text to another one: those that are known to, or else their difference. */
export function between(before, after, known) {
  const changes = composed(known);
  return changes && changes.length === before.length && applied(before, changes) === after ? changes : difference(before, after);
}

/** Return the parts of changes, each with the text that it inserts. */
export function partsOf(changes) {
  const parts = /** @type {any[]} */ ([]);
  changes.iterChanges((from, to, at, end, insert) => parts.push({ from, to, at, end, insert }));
  return parts;
}

/**
 * Return changes without the words that are the same before and after, if these are most of a passage: as when a text is
 * pasted over an older version of it.
 * @param {ChangeSet} changes
 * @param {import("../vendor/codemirror.js").EditorState["doc"]} before
 */
export function refined(changes, before) {
  const parts = partsOf(changes);
  if (!parts.some(({ from, to, insert }) => from < to && insert.length > 1)) return changes;
  const fine = parts.flatMap(({ from, to, insert }) => {
    const [old, now] = [before.sliceString(from, to), insert.toString()];
    const all = changedParts(old, now);
    const gone = all.reduce((sum, each) => sum + each.to - each.from, 0);
    if (gone * 2 > old.length) return [{ from, to, insert: now }];
    return all.map((each) => ({ from: from + each.from, to: from + each.to, insert: now.slice(each.at, each.end) }));
  });
  return ChangeSet.of(fine, changes.length, "\n");
}

/** Return two changes of the same text, each as it is after the other one. */
export function rebased(mine, theirs, parting = parted(mine, theirs)) {
  // A text that replaces another one comes after what was typed before that.
  const placed = ChangeSet.of(partsOf(theirs).map(({ from, to, insert }) => [{ from, to }, { from: to, insert }]), theirs.length);
  const own = ChangeSet.of(partsOf(mine.compose(parting)), mine.length);
  return { own: own.map(placed), others: parting.compose(placed.map(own, true)), parting };
}

/** Return a space after each of my words that replaces one that they have replaced, too. A word that is the same goes. */
function parted(mine, theirs) {
  const words = partsOf(theirs).filter(({ from, to, insert }) => from < to && insert.length);
  const parts = partsOf(mine).flatMap(/** @returns {any[]} */ ({ from, to, at, end, insert }) => {
    const other = from < to && at < end && words.find((each) => each.from < to && from < each.to);
    if (!other) return [];
    if (other.from === from && other.to === to && other.insert.eq(insert)) return [{ from: at, to: end }];
    const isApart = !ENDS.test(insert.sliceString(insert.length - 2)) || !STARTS.test(other.insert.sliceString(0, 2));
    return isApart ? [] : [{ from: end, insert: " " }];
  });
  return ChangeSet.of(parts, mine.newLength);
}

/** Merge two texts that were changed from the same one, whose own changes nobody knows. */
export const merged = (base, mine, theirs) => applied(mine, rebased(difference(base, mine), difference(base, theirs)).others);

/** Return the changes of a text's marks. `marks` are of the text after them. */
export const marking = (changes, marks) =>
  ChangeSet.of(partsOf(changes).map(({ from, to, at, end }) => ({ from, to, insert: marks.slice(at, end).padEnd(end - at, WRITER) })), changes.length);
