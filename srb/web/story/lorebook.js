// @ts-check
// A lorebook: entries that are added to the prompt where their keywords appear.
//
// An entry is {name, keys, also, never, text, always, off, depth}. `keys`, `also` and `never` are lists of keywords,
// separated by commas: one of `keys` must appear, one of `also` if there are any, and none of `never`. All words of a
// key with & must appear. `always` needs no keyword; `off` disables the entry. `depth` is in paragraphs before the
// end; null puts it after the memory. `id` tells it apart when two devices change the lorebook.

import { newId } from "./tree.js";
import { isObject, isText } from "./validation.js";

export const DEPTH = 3; // the default, in paragraphs before the end
const LOOKED_AT = 3000; // characters before the cursor to search for keywords

// A letter of a word that ends before other signs. Some scripts have no spaces between words.
const LETTER = /[[\p{L}\p{N}]--[\p{sc=Han}\p{sc=Hiragana}\p{sc=Katakana}\p{sc=Thai}\p{sc=Lao}\p{sc=Khmer}\p{sc=Myanmar}]]/v;
const isLetter = (sign) => LETTER.test(sign ?? "");

const listed = (keys) => keys.split(/[,\n]/).map((key) => key.trim()).filter(Boolean);

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

const isThere = (key, text) => plain(key).split(" & ").every((words) => occurs(words.trim(), text));

/**
 * Return the entries that apply at the end of a text.
 * @param {any[]} entries
 * @param {string} text
 */
export function matching(entries, text) {
  const near = plain(text.slice(-LOOKED_AT));
  const some = (keys) => listed(keys).some((key) => isThere(key, near));
  const applies = ({ keys, also, never }) => some(keys) && (!listed(also).length || some(also)) && !some(never);
  return entries.filter((entry) => !entry.off && entry.text.trim() && (entry.always || applies(entry)));
}

export const EMPTY_ENTRY = { name: "", keys: "", also: "", never: "", text: "", always: false, off: false, depth: null };

const isEntry = (value) =>
  isObject(value) && ["name", "keys", "also", "never", "text"].every((name) => isText(value[name])) &&
  ["always", "off"].every((name) => typeof value[name] === "boolean") &&
  (value.depth === null || (Number.isInteger(value.depth) && value.depth > 0)) && (value.id === undefined || isText(value.id));

const isVersion = (value) => isObject(value) && isText(value.name) && isText(value.text);

/**
 * Whether this is the background of a story: {memory, note, depth, lore, versions}. `versions`, if there are any, are
 * those of merging.js.
 * @param {any} value
 */
export const isBackground = (value) =>
  isObject(value) && isText(value.memory) && isText(value.note) && Number.isInteger(value.depth) && value.depth > 0 &&
  Array.isArray(value.lore) && value.lore.every(isEntry) &&
  (value.versions === undefined || (Array.isArray(value.versions) && value.versions.every(isVersion)));

/**
 * Read a stored background. Invalid parts are dropped. Entries of older pages get ids, the same on each device.
 * @param {any} [stored]
 * @returns {{ memory: string, note: string, depth: number, lore: any[], versions?: import("./merging.js").Version[] }}
 */
export function readBackground({ memory = "", note = "", depth = DEPTH, lore = [], versions = undefined } = {}) {
  const all = { memory, note, depth, lore, ...(versions && { versions }) };
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

// Positions of entries in SillyTavern: before or after the author's note, or at a depth.
const BEFORE_NOTE = 2;
const BEHIND_NOTE = 3;
const AT_DEPTH = 4;

const isRegex = (key) => /^\/.+\/[a-z]*$/s.test(key);

// Properties that this page doesn't support: [name, whether an entry has it].
/** @type {[string, (entry: any) => boolean][]} */
const UNKNOWN = [
  ["a probability", ({ probability, useProbability }) => useProbability !== false && probability < 100],
  ["a group", ({ group }) => Boolean(group)],
  ["sticky, cooldown or delay", ({ sticky, cooldown, delay }) => [sticky, cooldown, delay].some((count) => count > 0)],
  ["a scan depth", ({ scanDepth }) => typeof scanDepth === "number"],
  ["capitals that matter", ({ caseSensitive }) => caseSensitive === true],
  ["an outlet", ({ position }) => position === 7],
  ["keys that are regular expressions", (entry) => [entry.key, entry.keysecondary, entry.keyanti].flatMap(keysOf).some(isRegex)],
  ["names in {{ }}", ({ content }) => /\{\{.*\}\}/.test(content)],
];

/**
 * Return the keywords of a field, which is a list or a text with commas. A text with a regular expression isn't
 * split.
 */
function keysOf(field) {
  const keys = Array.isArray(field) ? field.filter(isText) : isText(field) ? (isRegex(field) ? [field] : field.split(",")) : [];
  return keys.map((key) => key.trim()).filter(Boolean);
}

/**
 * Import a lorebook: SillyTavern's World Info, or KoboldAI's, which may be in a saved story.
 * @param {any} data
 * @returns {{ entries: any[], ignored: string[] }} `ignored` describes properties that this page doesn't support
 * @throws {Error} if it isn't a lorebook
 */
export function importLorebook(data) {
  const list = isObject(data?.entries) ? Object.values(data.entries) : Array.isArray(data?.worldinfo) ? data.worldinfo : data;
  if (!Array.isArray(list)) throw new Error("this file has neither the entries of a SillyTavern lorebook nor KoboldAI's worldinfo");
  list.forEach((entry, k) => {
    if (!isObject(entry) || !isText(entry.content)) throw new Error(`entry ${k + 1} in this file has no content that is a text`);
  });
  const sorted = list.toSorted((a, b) => (a.order ?? 0) - (b.order ?? 0)); // the last one is closest to the end
  const count = ([name, has]) => [name, list.filter(has).length];
  const ignored = UNKNOWN.map(count).filter(([, times]) => times).map(([name, times]) => `${name} (${times})`);
  return { entries: sorted.map(entryOf), ignored };
}

function entryOf(entry) {
  const { key, keysecondary, keyanti, content, comment, constant, selective, selectiveLogic = 0, position, depth } = entry;
  const words = (field) => keysOf(field).filter((each) => !isRegex(each));
  const isSelective = selective !== false;
  const second = isSelective ? words(keysecondary) : [];
  const isAll = [1, 3].includes(selectiveLogic); // not all, and all
  const joined = isAll ? second.join(" & ") : second.join(", ");
  const isNever = [1, 2].includes(selectiveLogic); // not all, and not any
  const anti = isSelective ? words(keyanti).join(", ") : "";
  const late = position === AT_DEPTH ? Math.max(1, depth ?? AT_DEPTH) : [BEFORE_NOTE, BEHIND_NOTE].includes(position) ? DEPTH : null;
  return {
    name: isText(comment) ? comment : "",
    keys: words(key).join(", "),
    also: isNever ? "" : joined,
    never: isNever ? joined : anti,
    text: content,
    always: constant === true,
    off: entry.disable === true || entry.widisabled === true,
    depth: late,
  };
}
