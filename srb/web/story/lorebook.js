// @ts-check
// A lorebook: entries that are added to the prompt where their keywords appear.
//
// An entry is {name, keys, also, never, text, always, off, depth}. `keys`, `also` and `never` are lists of keywords,
// separated by commas: one of `keys` must appear, one of `also` if there are any, and none of `never`. All words of a
// key with & must appear. A key in double quotes may have commas and &. `always` needs no keyword; `off` disables the entry. `depth` is in paragraphs before the
// end; null puts it after the memory. `id` tells it apart when two devices change the lorebook.

import { newId } from "./tree.js";
import { isObject, isText } from "./validation.js";

export const DEPTH = 3; // the default, in paragraphs before the end
const LOOKED_AT = 3000; // characters before the cursor to search for keywords

// A letter of a word that ends before other signs. Some scripts have no spaces between words.
const LETTER = /[[\p{L}\p{N}]--[\p{sc=Han}\p{sc=Hiragana}\p{sc=Katakana}\p{sc=Thai}\p{sc=Lao}\p{sc=Khmer}\p{sc=Myanmar}]]/v;
const isLetter = (sign) => LETTER.test(sign ?? "");

/** Normalize case and spaces for comparing. */
const plain = (text) => text.toLowerCase().replace(/\s+/g, " ");

/** Whether words appear in a text as whole words. Both are normalized. */
function occurs(words, text) {
  const end = words.length;
  for (let at = text.indexOf(words); at >= 0; at = text.indexOf(words, at + 1)) {
    const isWithin = (k) => isLetter(text[k - 1]) && isLetter(text[k]);
    if (!isWithin(at) && !isWithin(at + end)) return true;
  }
  return false;
}

// A word, or words in quotes, and what separates it from the next one.
const PHRASE = /\s*(?:"((?:[^"]|"")+)"|((?:(?! & )[^,\n])*?))\s*(,|\n| & |$)/g;

/** Return the keys of a list, each as the words that must appear. */
function listed(keys) {
  /** @type {string[][]} */
  const items = [[]];
  for (const [, quoted, words, end] of keys.matchAll(PHRASE)) {
    const phrase = plain(quoted?.replaceAll('""', '"') ?? words).trim();
    if (phrase) items[items.length - 1].push(phrase);
    if (end !== " & ") items.push([]);
  }
  return items.filter((item) => item.length);
}

/** Return the entries that apply at the end of a text. */
export function matching(entries, text) {
  const near = plain(text.slice(-LOOKED_AT));
  const some = (keys) => listed(keys).some((key) => key.every((words) => occurs(words, near)));
  const applies = ({ keys, also, never }) => some(keys) && (!listed(also).length || some(also)) && !some(never);
  return entries.filter((entry) => !entry.off && entry.text.trim() && (entry.always || applies(entry)));
}

export const EMPTY_ENTRY = { name: "", keys: "", also: "", never: "", text: "", always: false, off: false, depth: null };

const isEntry = (value) =>
  isObject(value) && ["name", "keys", "also", "never", "text"].every((name) => isText(value[name])) &&
  ["always", "off"].every((name) => typeof value[name] === "boolean") &&
  (value.depth === null || (Number.isInteger(value.depth) && value.depth > 0)) && (value.id === undefined || isText(value.id));

/** Whether this is the background of a story: {memory, note, depth, lore}. */
export const isBackground = (value) =>
  isObject(value) && isText(value.memory) && isText(value.note) && Number.isInteger(value.depth) && value.depth > 0 &&
  Array.isArray(value.lore) && value.lore.every(isEntry);

/** Read a stored background. Invalid parts are dropped. Entries without ids get some, the same on each device. */
export function readBackground({ memory = "", note = "", depth = DEPTH, lore = /** @type {any[]} */ ([]) } = {}) {
  const all = { memory, note, depth, lore };
  if (isBackground(all)) return { ...all, lore: withIds(lore) };
  return { memory: isText(memory) ? memory : "", note: "", depth: DEPTH, lore: [] };
}

function withIds(lore) {
  const known = new Set();
  return lore.map((entry, k) => {
    const id = [entry.id, `entry ${k + 1}`].find((each) => each !== undefined && !known.has(each)) ?? newId();
    known.add(id);
    return { ...entry, id };
  });
}
