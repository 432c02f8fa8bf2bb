// @ts-check
// Lorebooks of other programs: SillyTavern's World Info, character cards V2 and V3 (JSON and PNG), and those of
// NovelAI, KoboldAI, Agnai, RisuAI and AI Dungeon. Their entries differ in names more than in meaning.

import { DEPTH } from "./lorebook.js";
import { isObject, isText } from "./validation.js";

const SIGNATURE = [0x89, 0x50, 0x4e, 0x47];
const LORE = ["ccv3", "chara", "naidata"]; // texts of pictures: cards V3 and V2, NovelAI's lorebooks

/** Read the file of a lorebook: JSON, or a picture that has it. */
export function parseLorebook(file) {
  const bytes = new Uint8Array(file);
  const card = SIGNATURE.every((byte, k) => bytes[k] === byte) ? textOfPicture(bytes) : null;
  try {
    const json = card === null ? bytes : Uint8Array.from(atob(card), (letter) => letter.charCodeAt(0));
    return JSON.parse(new TextDecoder().decode(json));
  } catch {
    throw new Error("this file is neither JSON nor a picture with a character card");
  }
}

/** Return the text in a PNG, in base64. A PNG has chunks of a length, a name, data and a checksum. */
function textOfPicture(bytes) {
  const view = new DataView(bytes.buffer);
  const found = {};
  for (let at = 8; at + 8 <= bytes.length; ) {
    const length = view.getUint32(at);
    const latin = new TextDecoder("latin1").decode(bytes.subarray(at + 4, at + 8 + length));
    const [, keyword, value] = /^(?:tEXt|iTXt)([^\0]+)\0.*?([^\0]*)$/s.exec(latin) ?? [];
    if (keyword) found[keyword.toLowerCase()] ??= value;
    at += 12 + length;
  }
  const name = LORE.find((each) => each in found);
  if (!name) throw new Error("this picture has no character card");
  return found[name];
}

// Positions of entries in SillyTavern: before or after the author's note, at a depth, or in an outlet.
const [BEFORE_NOTE, BEHIND_NOTE, AT_DEPTH, OUTLET] = [2, 3, 4, 7];

const isRegex = (key) => /^\/.+\/[a-z]*$/s.test(key);
const some = (...values) => values.some((value) => (Array.isArray(value) ? value.length : isObject(value) ? Object.keys(value).length : Boolean(value)));

// What this page doesn't do: [name, whether an entry has it].
/** @type {[string, (entry: any) => boolean][]} */
const UNKNOWN = [
  ["a probability", ({ probability, useProbability }) => useProbability !== false && probability < 100],
  ["a group", ({ group }) => some(group)],
  ["sticky, cooldown or delay", ({ sticky, cooldown, delay }) => [sticky, cooldown, delay].some((count) => count > 0)],
  ["a scan depth", ({ scanDepth, scan_depth: depth, searchRange = 1000 }) => typeof (scanDepth ?? depth) === "number" || searchRange !== 1000],
  ["capitals that matter", ({ caseSensitive, case_sensitive: isSensitive }) => (caseSensitive ?? isSensitive) === true],
  ["parts of words as keys", ({ matchWholeWords, match_whole_words: isWhole }) => (matchWholeWords ?? isWhole) === false],
  ["an outlet", ({ position }) => position === OUTLET],
  ["a position", ({ contextConfig }) => (contextConfig?.insertionPosition ?? -1) !== -1],
  ["activation by other entries", ({ delayUntilRecursion, delay_until_recursion: isLate }) => some(delayUntilRecursion, isLate)],
  ["activation by similarity", ({ vectorized }) => vectorized === true],
  ["characters or generation types that it is for", ({ characterFilter, triggers }) => some(characterFilter?.names, characterFilter?.tags, triggers)],
  ["phrase biases", ({ loreBiasGroups }) => Array.isArray(loreBiasGroups) && loreBiasGroups.some((group) => some(group?.phrases))],
  ["conditions", ({ advancedConditions }) => some(advancedConditions)],
  ["keys that are regular expressions", (entry) => entry.all.some((key) => isPattern(key, entry))],
  ["names in {{ }}", ({ text }) => /\{\{.*\}\}/.test(text)],
  ["decorators", ({ decorators }) => decorators.some((each) => !KNOWN.includes(each.name))],
];

const isPattern = (key, { use_regex: isAlways }) => isAlways === true || isRegex(key);

// Settings of a whole lorebook, which this page doesn't have.
const OF_BOOK = ["scan_depth", "token_budget", "recursive_scanning"];

const KNOWN = ["depth", "constant", "activate", "dont_activate"];

/** Split the decorators of card V3 from a text: lines such as `@@depth 4` at its beginning. */
function splitDecorators(text) {
  const [head] = /^(?:@@@?\w+[^\n]*(?:\n|$))*/.exec(text) ?? [""];
  const decorators = head.split("\n").filter(Boolean).map((line) => {
    const [, name = "", value = ""] = /^@@@?(\w+)\s*(.*)$/.exec(line) ?? [];
    return { name, value };
  });
  return { text: text.slice(head.length), decorators };
}

/**
 * Return the keywords of a field, which is a list, or a text with commas. A text with a regular expression isn't
 * split.
 */
function keysOf(field) {
  const keys = Array.isArray(field) ? field.filter(isText) : isText(field) ? (isRegex(field) ? [field] : field.split(",")) : [];
  return keys.map((key) => key.trim()).filter(Boolean);
}

/** Return the entries of a file, and what else is to be known about it. */
function bookOf(data) {
  const isCard = isObject(data?.data) && (isText(data.data.first_mes) || /^chara_card/.test(data.spec));
  const book = isCard ? data.data.character_book : (data?.character_book ?? data?.lorebook ?? (data?.spec === "lorebook_v3" ? data.data : data));
  if (isCard && !book) throw new Error("this character card has no lorebook");
  const found = [book, book?.entries, book?.worldinfo, book?.data].find((each) => Array.isArray(each)) ?? book?.entries;
  const list = isObject(found) ? Object.values(found) : found;
  if (!Array.isArray(list)) throw new Error("this file has no entries of a lorebook that the page knows");
  const settings = OF_BOOK.filter((name) => book[name]).map((name) => name.replace("_", " "));
  const notes = [...(isCard ? ["the character"] : []), ...(settings.length ? [`settings of the lorebook: ${settings.join(", ")}`] : [])];
  const categories = Array.isArray(book.categories) ? book.categories : [];
  return { list, notes, disabled: categories.filter((each) => each?.enabled === false).map((each) => each.id) };
}

/**
 * Import a lorebook.
 * @returns {{ entries: any[], ignored: string[], unread: string[] }} `ignored` describes what this page doesn't do,
 *   `unread` the entries that can't be read
 * @throws {Error} if it isn't a lorebook
 */
export function importLorebook(data) {
  const { list, notes, disabled } = bookOf(data);
  const read = list.map((entry) => normalize(entry, disabled));
  const unread = read.flatMap((entry, k) => (entry ? [] : [`entry ${k + 1}`]));
  const entries = read.filter((entry) => entry !== null);
  const count = ([name, has]) => [name, entries.filter(has).length];
  const counted = UNKNOWN.map(count).filter(([, times]) => times).map(([name, times]) => `${name} (${times})`);
  entries.sort((a, b) => a.order - b.order); // the last one is closest to the end
  return { entries: entries.map(entryOf), ignored: [...notes, ...counted], unread };
}

/** Give an entry's fields the same names; null if it has no text. */
function normalize(entry, disabled) {
  if (!isObject(entry)) return null;
  const more = isObject(entry.extensions) ? entry.extensions : {}; // SillyTavern's, in cards
  const all = { ...more, ...entry, position: typeof entry.position === "number" ? entry.position : more.position };
  const text = [all.content, all.text, all.entry, all.value].find(isText);
  if (text === undefined) return null;
  const keys = keysOf(all.key ?? all.keys ?? all.keywords);
  const isSelective = all.secondary_keys ? all.selective === true : all.selective !== false;
  const second = isSelective ? keysOf(all.keysecondary ?? all.secondary_keys ?? all.secondkey) : [];
  const anti = isSelective ? keysOf(all.keyanti) : [];
  return {
    ...all,
    ...splitDecorators(text),
    name: [all.comment, all.name, all.displayName, all.title].find((each) => isText(each) && each) ?? "",
    order: Number(all.insertion_order ?? all.order ?? all.insertorder) || 0,
    keys,
    second,
    anti,
    all: [...keys, ...second, ...anti],
    isAlways: [all.constant, all.forceActivation, all.alwaysActive].includes(true),
    isOff: [all.disable, all.disabled, all.widisabled].includes(true) || all.enabled === false || disabled.includes(all.category ?? null),
    areKeysJoined: isText(all.lastUpdatedAt) || "forceActivation" in all, // NovelAI's & means the same as the page's
  };
}

function entryOf(entry) {
  const { selectiveLogic = 0, position, decorators } = entry;
  const quote = (key) => (/[,\n]|^"/.test(key) || (key.includes(" & ") && !entry.areKeysJoined) ? `"${key.replaceAll('"', '""')}"` : key);
  const words = (keys, sign = ", ") => keys.filter((key) => !isPattern(key, entry)).map(quote).join(sign);
  const isAll = [1, 3].includes(selectiveLogic); // not all, and all
  const joined = words(entry.second, isAll ? " & " : ", ");
  const isNever = [1, 2].includes(selectiveLogic); // not all, and not any
  const has = (name) => decorators.some((each) => each.name === name);
  const at = Number(decorators.find((each) => each.name === "depth")?.value || (position === AT_DEPTH ? (entry.depth ?? AT_DEPTH) : NaN));
  const late = Number.isNaN(at) ? ([BEFORE_NOTE, BEHIND_NOTE].includes(position) ? DEPTH : null) : Math.max(1, Math.round(at));
  return {
    name: entry.name,
    keys: words(entry.keys),
    also: isNever ? "" : joined,
    never: isNever ? joined : words(entry.anti),
    text: entry.text,
    always: entry.isAlways || has("constant") || has("activate"),
    off: entry.isOff || has("dont_activate"),
    depth: late,
  };
}
