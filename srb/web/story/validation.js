// @ts-check
// What nodes must be like, in files and in what the browser has kept, so that nothing on the page fails at them. Pure.

import { UNITS } from "../lib/length.js";
import { ROOT } from "./tree.js";

const LAST_DAY = 8.64e15; // in milliseconds since 1970, as a Date has them

export const isText = (value) => typeof value === "string";
const isTruth = (value) => typeof value === "boolean";
const isNumber = (value) => typeof value === "number";
const isCount = (value) => Number.isInteger(value) && value >= 0;
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

// What each field of a node must be; all but the first three may be missing.
const NEEDED = { id: (value) => isText(value) && value !== ROOT, parent: isText, pieces: isList(isPiece) };
const OTHERS = {
  typed: isTruth, kept: isTruth, discarded: isTruth, whole: isTruth, healed: isTruth, stem: isTruth, asked: isTruth,
  label: isText, name: isText, behind: isText, passage: isText, marks: isText, end: isText, request: isText, fault: isText,
  batch: isTime, created: isTime, order: isCount, index: isCount, seed: isCount, length: isCount,
  after: isNumber, follows: isNumber, endsAt: isCount, milliseconds: isNumber,
  settings: isObject, until: isUntil, reason: isReason,
};
const FIELDS = { ...NEEDED, ...Object.fromEntries(Object.entries(OTHERS).map(([name, isThis]) => [name, isPerhaps(isThis)])) };

const wrong = (node) => Object.keys(FIELDS).filter((name) => !FIELDS[name](node[name]));

// Throws an Error in words where these aren't the nodes of a tree.
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

// Leaves out what no node may have, of those that were kept before all of it was checked. Returns those nodes.
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

// What older pages have kept in another way. Pure.
//
// They asked questions in the tree. A question was a typed node that had its words as its `label`, and as its text what the chat
// template made of them. Such a conversation is read as a text now. A draft of a question had a place of its own.

const isQuestion = (node) => Boolean(node.typed && node.label);
const isQuestionDraft = ([place]) => place.startsWith("ask ");

// Makes texts of the questions among these nodes, which are `asked` then. Tokens that stood for a whole text with a template in it are
// forgotten. Returns the nodes that are others now.
export function upgradeQuestions(nodes) {
  const questions = nodes.filter(isQuestion);
  if (!questions.length) return [];
  const known = new Map(nodes.map((node) => [node.id, node]));
  const isBehindOne = ({ parent }) => known.has(parent) && (isQuestion(known.get(parent)) || isBehindOne(known.get(parent)));
  const wholes = nodes.filter((node) => node.whole && isBehindOne(node));
  for (const node of wholes) Object.assign(node, { whole: undefined, pieces: node.pieces.map((piece) => ({ ...piece, ids: null })) });
  for (const node of questions) {
    const text = `${node.parent === ROOT ? "" : "\n\n"}${node.label}\n\n`;
    Object.assign(node, { pieces: [{ text, ids: null }], label: undefined, whole: undefined, asked: true });
  }
  return [...new Set([...questions, ...wholes])];
}

// Drafts as [place, text] without those of questions, and these as one: {drafts, question}.
export function withoutQuestions(drafts) {
  const questions = drafts.filter(isQuestionDraft).map(([, text]) => text);
  return { drafts: drafts.filter((each) => !isQuestionDraft(each)), question: questions.join("\n\n") };
}
