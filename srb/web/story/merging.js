// @ts-check
// Merging what two tabs or devices have made of the same values: memory, note, lore, and all else that isn't in the
// manuscript. Each value that only one of them has changed is taken, and texts that both have changed are merged.

import { merged } from "./text_merge.js";
import { isObject, isText } from "./validation.js";

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
 * @param {(mine: string, theirs: string, base: any) => string} [texts] merges two texts
 * @returns {T}
 */
export function merge(base, mine, theirs, texts = (own, others, before) => merged(isText(before) ? before : "", own, others)) {
  if (same(mine, theirs) || same(base, theirs)) return mine;
  if (same(base, mine)) return theirs;
  return /** @type {any} */ (mergeValues(base, mine, theirs, texts));
}

function mergeValues(base, mine, theirs, texts) {
  if (Array.isArray(mine) && Array.isArray(theirs)) return mergeLists(Array.isArray(base) ? base : [], mine, theirs, texts);
  if (isText(mine) && isText(theirs)) return texts(mine, theirs, base);
  if (!isObject(mine) || !isObject(theirs)) return mine ?? theirs;
  const names = [...new Set([...Object.keys(mine), ...Object.keys(theirs)])];
  return Object.fromEntries(names.map((name) => [name, merge(base?.[name], mine[name], theirs[name], texts)]));
}

/** An entry that one has removed and the other has changed stays. */
function mergeLists(base, mine, theirs, texts) {
  const [before, own, others] = [base, mine, theirs].map(byKey);
  const isRemoved = (key, item) => before.has(key) && same(before.get(key), item);
  const all = [];
  for (const [key, item] of others)
    if (own.has(key)) all.push(merge(before.get(key), own.get(key), item, texts));
    else if (!isRemoved(key, item)) all.push(item);
  for (const [key, item] of own) if (!others.has(key) && !isRemoved(key, item)) all.push(item);
  return all;
}
