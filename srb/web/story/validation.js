// @ts-check
// Validates nodes from files, and repairs stored ones.

import { UNITS } from "../lib/length.js";
import { ROOT } from "./tree.js";

const LAST_DAY = 8.64e15; // milliseconds since 1970, the limit of Date

export const isText = (value) => typeof value === "string";
const isTruth = (value) => typeof value === "boolean";
const isNumber = (value) => typeof value === "number";
export const isCount = (value) => Number.isInteger(value) && value >= 0;
const isTime = (value) => isNumber(value) && Math.abs(value) <= LAST_DAY;
export const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const isList = (isEach) => (value) => Array.isArray(value) && value.every(isEach);
const isMissing = (value) => value === undefined || value === null;
const isPerhaps = (isThis) => (value) => isMissing(value) || isThis(value);

const isChoice = (value) => isObject(value) && Number.isInteger(value.id) && isText(value.text) && isNumber(value.p);
const isPiece = (value) =>
  isObject(value) && isText(value.text) && (value.ids === null || isList(Number.isInteger)(value.ids)) &&
  isPerhaps(isNumber)(value.p) && isPerhaps(isList(isChoice))(value.top);
const isUntil = (value) => isObject(value) && UNITS.includes(value.unit) && isNumber(value.count) && isPerhaps(isCount)(value.from);
const isReason = (value) => isObject(value) && isText(value.finish_reason) && isPerhaps(isText)(value.stop_reason);

// The fields of a node. All but the first three are optional.
const NEEDED = { id: (value) => isText(value) && value !== ROOT, parent: isText, pieces: isList(isPiece) };
const OTHERS = {
  typed: isTruth, kept: isTruth, discarded: isTruth, whole: isTruth, healed: isTruth, stem: isTruth,
  label: isText, name: isText, behind: isText, passage: isText, marks: isText, end: isText, request: isText, fault: isText,
  batch: isTime, created: isTime, order: isCount, index: isCount, seed: isCount, length: isCount,
  after: isNumber, follows: isNumber, endsAt: isCount, milliseconds: isNumber,
  settings: isObject, until: isUntil, reason: isReason,
};
const FIELDS = { ...NEEDED, ...Object.fromEntries(Object.entries(OTHERS).map(([name, isThis]) => [name, isPerhaps(isThis)])) };

const wrong = (node) => Object.keys(FIELDS).filter((name) => !FIELDS[name](node[name]));

/** Throw an error if nodes aren't a tree. */
export function checkNodes(nodes) {
  const parents = new Map(nodes.filter(isObject).map((node) => [node.id, node.parent]));
  const seen = new Set();
  nodes.forEach((node, k) => {
    if (!isObject(node) || !NEEDED.id(node.id)) throw new Error(`text ${k + 1} in this file has no id`);
    const [name] = wrong(node);
    if (name) throw new Error(`text ${node.id} in this file can't be read: its ${name} is ${shown(node[name])}`);
    if (seen.has(node.id)) throw new Error(`there are two texts ${node.id} in this file`);
    seen.add(node.id);
    if (node.parent !== ROOT && !parents.has(node.parent)) throw new Error(`text ${node.id} in this file hangs on nothing`);
  });
  const sound = new Set([ROOT]);
  for (const { id } of nodes) {
    const path = new Set();
    for (let each = id; !sound.has(each); each = parents.get(each)) {
      if (path.has(each)) throw new Error(`text ${id} in this file comes before itself`);
      path.add(each);
    }
    for (const each of path) sound.add(each);
  }
}

const shown = (value) => (value === undefined ? "missing" : JSON.stringify(value).slice(0, 60));

/** Repair stored nodes, and return those. Wrong fields are dropped. */
export function repair(nodes) {
  const known = new Set([ROOT, ...nodes.map((node) => node.id)]);
  return nodes.filter((node) => {
    const names = wrong(node);
    for (const name of names) delete node[name];
    if (!Array.isArray(node.pieces)) node.pieces = [];
    if (!known.has(node.parent)) node.parent = ROOT;
    return names.length;
  });
}
