// @ts-check
// Stories in files: nodes and drafts, without what was only there to be looked at.

import { isConversation } from "./conversation.js";
import { isBackground } from "./lorebook.js";
import { ROOT } from "./tree.js";
import { checkNodes, isObject, isText } from "./validation.js";

// The fields of a node that a file has as they are.
const FIELDS = [
  "id", "parent", "typed", "label", "name", "kept", "discarded", "batch", "created",
  "order", "seed", "settings", "until", "length", "end", "whole", "healed", "stem", "follows", "behind", "passage", "marks",
];

const fieldsOf = (node) => Object.fromEntries(FIELDS.filter((name) => (node[name] ?? null) !== null).map((name) => [name, node[name]]));

/** A piece is [text, id or ids, probability]. */
const pack = ({ text, ids, p }) => [text, ids?.length === 1 ? ids[0] : ids, ...(p === undefined ? [] : [Number(p.toPrecision(3))])];

function unpack(piece) {
  if (!Array.isArray(piece)) return piece;
  const [text, ids, p] = piece;
  return { text, ids: typeof ids === "number" ? [ids] : ids, ...(p === undefined ? {} : { p }) };
}

const isSet = ([, value]) => value !== "" && value !== false;

/**
 * @param {import("./tree.js").Tree} tree
 * @param {[place: string, text: string][]} drafts
 * @param {Record<string, any>} [about] model, title, settings, background, conversation, `marks` of the drafts by place
 */
export function exportTree(tree, drafts, { settings = {}, ...about } = {}) {
  const nodes = [...tree.nodes.values()].map((node) => ({ ...fieldsOf(node), pieces: node.pieces.map(pack) }));
  const set = Object.fromEntries(Object.entries(settings).filter(isSet));
  const said = { ...about, settings: set, current: tree.current, drafts: Object.fromEntries(drafts) };
  return { format: "srb-tree", version: 2, exported: new Date().toISOString(), ...said, nodes };
}

/** @throws {Error} if a field is wrong */
export function importTree(data) {
  if (data?.format !== "srb-tree" || data.version !== 2 || !Array.isArray(data.nodes))
    throw new Error("this file is not a tree that this page has exported");
  const read = data.nodes.map((node) => (Array.isArray(node?.pieces) ? { ...node, pieces: node.pieces.map(unpack) } : node));
  checkNodes(read);
  const { title = "", current = ROOT, drafts: typed = {}, marks = {}, beside, conversation, question = "" } = data;
  if (!isText(title)) throw new Error("the title in this file is no text");
  if (beside !== undefined && !isBackground(beside)) throw new Error("memory, note or lore in this file can't be read");
  if (conversation !== undefined && !isConversation(conversation)) throw new Error("the conversation in this file can't be read");
  const places = new Set([ROOT, ...read.map((node) => node.id)]);
  if (!isObject(typed) || !Object.values(typed).every(isText)) throw new Error("a draft in this file is no text");
  const drafts = Object.entries(typed);
  if (!drafts.every(([place]) => places.has(place))) throw new Error("a draft in this file belongs to no text");
  if (!isObject(marks) || !Object.values(marks).every(isText))
    throw new Error("who wrote a draft in this file can't be read");
  const known = Object.fromEntries(drafts.filter(([place]) => place in marks).map(([place]) => [place, marks[place]]));
  const nodes = read.map((node) => ({ ...fieldsOf(node), pieces: node.pieces }));
  if (!isText(question)) throw new Error("the question in this file is no text");
  return { title, current: places.has(current) ? current : ROOT, drafts, marks: known, nodes, beside, conversation, question };
}
