// @ts-check
// Merging what two tabs or devices have made of the same values: memory, note, lore, and all else that isn't in the
// text. Each value that only one of them has changed is taken. Of a text that both have changed, the other one stays as
// a version, for the writer to choose.

import { isObject, isText } from "./validation.js";

/**
 * @typedef {{ name: string, text: string }} Version another version of a text, and its place, such as `memory`, or
 *   `lore/ID/text` of a list's entry
 */

export const same = (a, b) => a === b || JSON.stringify(a) === JSON.stringify(b);

/** What names an item of a list: its id; of a turn of a conversation, its request; else its place. */
const keyOf = (item, k) => String(item?.id ?? item?.answers?.[0]?.request ?? item?.index ?? k);

const byKey = (list) => new Map(list.map((item, k) => [keyOf(item, k), item]));

/**
 * Merge two values that were changed from the same one.
 * @template T
 * @param {T} base
 * @param {T} mine
 * @param {T} theirs
 * @param {(name: string) => boolean} [isKept] whether another version of a text is kept; else mine wins
 * @returns {T} with all versions as `versions`, if it is an object that has some
 */
export function merge(base, mine, theirs, isKept = () => true) {
  if (same(mine, theirs) || same(base, theirs)) return mine;
  if (same(base, mine)) return theirs;
  const found = /** @type {Version[]} */ ([]);
  const { versions: _, ...merged } = /** @type {any} */ (mergeValues(base, mine, theirs, "", found));
  const others = [base, mine, theirs].map((each) => /** @type {any} */ (each)?.versions ?? []);
  const [, own] = others.map((list) => list.map((each) => JSON.stringify(each)));
  const isCurrent = (version) => {
    const { name, text } = version;
    const now = textAt(merged, name);
    const isBefore = text === textAt(base, name) && now === textAt(mine, name) && !own.includes(JSON.stringify(version)); // mine was made of it
    return isText(now) && !now.includes(text) && !isBefore;
  };
  const versions = [...mergeSets(...others), ...found.filter(({ name }) => isKept(name))].filter(isCurrent);
  return versions.length || others.some((each) => each.length) ? { ...merged, versions } : merged;
}

function mergeValues(base, mine, theirs, name, found) {
  if (same(mine, theirs) || same(base, theirs)) return mine;
  if (same(base, mine)) return theirs;
  const below = (key) => (name ? `${name}/${key}` : key);
  if (Array.isArray(mine) && Array.isArray(theirs)) return mergeLists(Array.isArray(base) ? base : [], mine, theirs, below, found);
  if (isObject(mine) && isObject(theirs)) {
    const names = [...new Set([...Object.keys(mine), ...Object.keys(theirs)])].filter((key) => key !== "versions" || name);
    return Object.fromEntries(names.map((key) => [key, mergeValues(base?.[key], mine[key], theirs[key], below(key), found)]));
  }
  if (!isText(mine) || !isText(theirs)) return mine ?? theirs;
  if (!mine.trim() || theirs.includes(mine)) return theirs; // nothing is lost
  if (theirs.trim() && !mine.includes(theirs)) found.push({ name, text: theirs });
  return mine;
}

/** An entry that one has removed and the other has changed stays. */
function mergeLists(base, mine, theirs, below, found) {
  const [before, own, others] = [base, mine, theirs].map(byKey);
  const isRemoved = (key, item) => before.has(key) && same(before.get(key), item);
  const all = [];
  for (const [key, item] of others)
    if (own.has(key)) all.push(mergeValues(before.get(key), own.get(key), item, below(key), found));
    else if (!isRemoved(key, item)) all.push(item);
  for (const [key, item] of own) if (!others.has(key) && !isRemoved(key, item)) all.push(item);
  return all;
}

function mergeSets(base, mine, theirs) {
  const [before, own, others] = [base, mine, theirs].map((list) => new Map(list.map((each) => [JSON.stringify(each), each])));
  return [...new Map([...others, ...own])].filter(([key]) => !before.has(key) || (own.has(key) && others.has(key))).map(([, each]) => each);
}

/**
 * Return the value with this name, as a version has it.
 * @param {any} values
 * @param {string} name
 */
export const textAt = (values, name) =>
  name.split("/").reduce((value, key) => (Array.isArray(value) ? byKey(value).get(key) : value?.[key]), values);
