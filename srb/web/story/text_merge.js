// @ts-check
// Merges what two tabs or devices have made of the same text: each change of one is made in the other's text, too. All
// that both have written is there once. Where one has rewritten a word that the other has changed, both words stand.

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
const BETWEEN = /^[^\p{L}\p{N}\n]*$/u; // two words of a phrase
const LONGEST_WORD = 40; // characters; what is longer isn't a word
const SHORT_WORD = 12; // characters
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

/**
 * Return the single change between two texts, as CodeMirror takes it.
 * @param {string} before
 * @param {string} after
 * @returns {{ from: number, to: number, insert: string }}
 */
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
  if (split === splitLetters && removed * 2 >= before.length && before.length <= SHORT_WORD) {
    const start = common(before, after); // another word, but for letters that both begin or end with
    const same = common(before.slice(start), after.slice(start), true);
    return [{ from: from + start, to: to - same, at: at + start, end: end - same }];
  }
  const found = all.flatMap((each) => (finer.length && each.toA - each.fromA === each.toB - each.fromB ? oneByOne(each) : [each]));
  return found.flatMap(({ fromA, toA, fromB, toB }) => compareParts(texts, { from: starts[fromA], to: starts[toA], at: places[fromB], end: places[toB] }, finer));
}

/** A difference of as many lines or words as there were: each has become another one. */
const oneByOne = ({ fromA, toA, fromB }) =>
  Array.from({ length: toA - fromA }, (_, k) => ({ fromA: fromA + k, toA: fromA + k + 1, fromB: fromB + k, toB: fromB + k + 1 }));

/** @returns {ChangeSet} */
function changeSet(parts, length, text, space = "", isAfter = false) {
  const changes = /** @type {any[]} */ ([]);
  for (const { from, to, at, end, isWhole, isApart } of parts) {
    const insert = text.slice(at, end) + (isApart ? space : "");
    const last = changes.at(-1);
    if (last?.to === from) Object.assign(last, { to, insert: last.insert + insert });
    else changes.push({ from, to, insert, isWhole });
  }
  // A text that replaces another one comes after what was typed before that.
  const placed = changes.map(({ isWhole, ...each }) => (isAfter && !isWhole ? [{ from: each.from, to: each.to }, { from: each.to, insert: each.insert }] : each));
  return ChangeSet.of(placed, length, "\n");
}

/**
 * Return the parts of two texts that differ, as whole words.
 * @param {string} before
 * @param {string} after
 */
export const changedParts = (before, after) => compare(before, after, [splitLines, splitWords]);

/**
 * Return the changes between two texts: small ones, wherever they were made.
 * @param {string} before
 * @param {string} after
 */
export const difference = (before, after) => changeSet(compare(before, after), before.length, after);

/**
 * Return a text after some changes.
 * @param {string} text
 * @param {ChangeSet} changes
 */
export function applied(text, changes) {
  const parts = [];
  let done = 0;
  changes.iterChanges((from, to, _at, _end, added) => {
    parts.push(text.slice(done, from), added.toString());
    done = to;
  });
  return parts.join("") + text.slice(done);
}

/**
 * Return the changes of a text that make it what both are together. Both were made of the same text, `base`.
 * @param {string} base
 * @param {string} mine
 * @param {string} theirs
 * @param {string} [marks] who wrote what of theirs
 * @returns {{ changes: ChangeSet, marks: ChangeSet }} and the changes of my text's marks
 */
export function mergeTexts(base, mine, theirs, marks = theirs.replace(/[^]/g, WRITER)) {
  if (mine === theirs) base = mine;
  let [own, others] = [compare(base, mine), compare(base, theirs)];
  if (own.length && others.length) [own, others] = wholeWords(base, [mine, own], [theirs, others]);
  const before = changeSet(own, base.length, mine);
  const [changes, marked] = [[theirs, " "], [marks, WRITER]].map(([text, space]) => changeSet(others, base.length, text, space, true).map(before, true));
  return { changes, marks: marked };
}

/** Widen changes to whole words where both have changed the same ones and one of them has written another word. */
function wholeWords(base, ...sides) {
  const spansOf = (parts, side) => parts.map((part) => ({ side, part, ...spanOf(base, sides[side][0], part) }));
  const written = sides.map(([, parts], side) => spansOf(parts.filter(({ at, end }) => at < end), side));
  const removed = sides.map(([, parts], side) => spansOf(parts.filter(({ at, end }) => at === end).flatMap((part) => pieces(part, written[1 - side])), side));
  const spans = [...written, ...removed].flat();
  const groups = /** @type {any[]} */ ([]);
  for (const { start, end, ...each } of spans.sort((a, b) => a.start - b.start || a.end - b.end)) {
    const last = groups.at(-1);
    if (last && start < last.end) {
      last.end = Math.max(last.end, end);
      last.all.push(each);
    } else groups.push({ start, end, all: [each] });
  }
  const joined = /** @type {any[]} */ ([]);
  for (const group of groups) {
    const last = joined.at(-1);
    group.isWhole = isRewritten(base, group);
    if (group.isWhole && last?.isWhole && BETWEEN.test(base.slice(last.end, group.start))) {
      last.end = group.end;
      for (const each of group.all) last.all.push(each);
    } else joined.push(group);
  }
  const found = /** @type {(Part & { isWhole?: boolean, isApart?: boolean })[][]} */ ([[], []]);
  const spaces = new Set();
  for (const { start, end, all, isWhole } of joined) {
    const [own, others] = partsOf(all);
    const wide = [own, others].map((parts) => widened(parts, start, end));
    const [mine, theirs] = wide.map((part, side) => part && sides[side][0].slice(part.at, part.end));
    const isSame = others.length && mine === theirs && own.some(({ from, to }) => from < to); // as two who mend the same word
    if (isWhole) Object.assign(wide[1], { isWhole, isApart: ENDS.test(theirs) && STARTS.test(sides[0][0].slice(wide[0].at, wide[0].at + 2)) });
    if (isWhole && !theirs) spaces.add(end); // after my word
    found[0].push(...(isWhole ? [wide[0]] : own));
    found[1].push(...(isSame ? [] : isWhole ? [wide[1]] : others));
  }
  return [found[0], found[1].filter(({ from, at, end }) => at < end || !spaces.has(from))];
}

const partsOf = (all) => [0, 1].map((side) => all.filter((each) => each.side === side).map(({ part }) => part));

/** @returns {any} */
const widened = (parts, start, end) => {
  const [first, last] = [parts[0], parts.at(-1)];
  return first && { from: start, to: end, at: first.at - (first.from - start), end: last.end + (end - last.to) };
};

/** Cut what one has removed around the words that the other has changed. */
function pieces({ from, to, at, end }, spans) {
  const ends = spans.filter((each) => each.start < to && each.end > from).flatMap((each) => [each.start, each.end, each.end + 1]);
  const cuts = [...new Set(ends.filter((cut) => from < cut && cut < to))].sort((a, b) => a - b);
  return [...cuts, to].map((cut) => ({ from, to: (from = cut), at, end }));
}

/** Where the words are that a part changes. */
function spanOf(base, text, { from, to, at, end }) {
  const isLetter = (k) => STARTS.test(base.charAt(k));
  let [start, stop] = [from, to];
  if (isLetter(from) || STARTS.test(text.slice(at, end))) while (start > from - LONGEST_WORD && isLetter(start - 1)) start--;
  if (isLetter(to - 1) || ENDS.test(text.slice(at, end))) while (stop < to + LONGEST_WORD && isLetter(stop)) stop++;
  return to + LONGEST_WORD > stop && start > from - LONGEST_WORD ? { start, end: stop } : { start: from, end: to };
}

/**
 * Whether both have changed these words, and one of them has written other ones. A letter that both have kept would be
 * there twice, if both words stood.
 */
function isRewritten(base, { start, end, all }) {
  const sides = partsOf(all);
  if (start === end || !sides.every((parts) => parts.length)) return false;
  let reach = start;
  for (const { from, to } of [...all.map(({ part }) => part).sort((a, b) => a.from - b.from), { from: end, to: end }]) {
    if (!BETWEEN.test(base.slice(reach, from))) return false;
    reach = Math.max(reach, to);
  }
  const removed = sides.map((parts) => parts.reduce((sum, { from, to }) => sum + to - from, 0));
  const isAdding = sides.map((parts) => parts.some(({ at, end: last }) => at < last));
  if (!isAdding.includes(true)) return false;
  const isNew = (k) => removed[k] === end - start || (isAdding[k] && removed[k] * 2 >= end - start);
  const isReplaced = ({ from, to, at, end: last }) => from < to && at < last;
  const isCrossing = (a, b) => a.from < b.to && b.from < a.to && (isReplaced(a) || isReplaced(b));
  return isNew(0) || isNew(1) || sides[0].some((a) => sides[1].some((b) => isCrossing(a, b)));
}
