// @ts-check
// The trees of other looms, which are JSON: Loomsidian (the Obsidian plugin) and loom, its model. tapestry_file.js has
// Tapestry Loom's.

import { CHANGED, MODEL, packMarks, WRITER } from "./authorship.js";
import { shorten } from "./titles.js";
import { newId, ROOT, textOf } from "./tree.js";
import { checkNodes, isObject, isText } from "./validation.js";

export const NAME_LENGTH = 50;
const DEEPEST = 480; // texts that follow each other in a file that loom opens: Python's json has a limit
const TIME = /^(\d+)-(\d+)-(\d+)-(\d+)\.(\d+)\.(\d+)$/; // in loom
const SOURCES = [[WRITER, "prompt"], [MODEL, "AI"], [CHANGED, "mixed"]]; // marks, and loom's words

/**
 * A node of a file in any of the formats.
 * @typedef {{ id: string, parent: string | null, text: string, author?: string, name?: string, label?: string, created?: number }} LoomNode
 *   `author` is a mark of authorship.js, if it is known; `label` is the model
 */

/** Read a tree of Loomsidian or loom. Returns null if the file is neither. */
export function importLoom(data) {
  if (isObject(data?.state) && Object.values(data.state).every((note) => isObject(note?.nodes))) {
    const notes = Object.entries(data.state);
    if (notes.length !== 1) throw new Error(`this file has the trees of ${notes.length} notes; open one in Obsidian, and export it there`);
    const [[path, note]] = notes;
    return { ...readLoomsidian(note), title: path.replace(/^.*\//, "").replace(/\.md$/, "") };
  }
  if (isObject(data?.nodes) && "current" in data) return readLoomsidian(data);
  if (isObject(data?.root) && Array.isArray(data.root.children)) return readLoom(data.root, data);
  if (isText(data?.text) && Array.isArray(data.children)) return readLoom(data);
  return null;
}

function readLoomsidian({ nodes, current }) {
  const read = Object.entries(nodes).map(([id, node]) => {
    if (!isText(node?.text)) throw new Error(`node ${id} in this file has no text`);
    return { id, parent: node.parentId ?? null, text: node.text, name: node.bookmarked ? shorten(node.text, NAME_LENGTH) : undefined };
  });
  return storyOf(read, current);
}

function readLoom(root, { chapters, selected_node_id: current = "" } = /** @type {any} */ ({})) {
  const read = [];
  const known = new Set([ROOT]);
  const left = [{ node: root, parent: null }];
  for (let each = left.pop(); each; each = left.pop()) {
    const { node, parent } = each;
    if (!isText(node?.text) || !Array.isArray(node.children)) throw new Error(`text ${read.length + 1} in this file has no text or no children`);
    const { text, meta, chapter_id: chapter, tags } = node;
    const id = node.id === undefined || known.has(node.id) ? newId() : node.id; // loom may import a tree twice
    known.add(id);
    const author = SOURCES.find(([, source]) => source === meta?.source)?.[0];
    const isMarked = Array.isArray(tags) && tags.includes("bookmark");
    const name = chapters?.[chapter]?.title ?? (isMarked ? shorten(text, NAME_LENGTH) : undefined);
    read.push({ id, parent, text, author, name, created: timeOf(meta?.creation_timestamp) });
    for (const child of [...node.children].reverse()) left.push({ node: child, parent: id });
  }
  return storyOf(read, current);
}

function timeOf(text) {
  const [year, month, ...rest] = (TIME.exec(text) ?? []).slice(1).map(Number);
  return year ? new Date(year, month - 1, ...rest).getTime() : undefined;
}

/** Make a story of nodes. An empty one that begins the story is left out. */
export function storyOf(read, current) {
  const known = new Set(read.map((node) => node.id));
  const empty = new Set(read.filter((node) => node.parent === null && !node.text).map((node) => node.id));
  const parentOf = ({ parent }) => (known.has(parent) && !empty.has(parent) ? parent : ROOT);
  const batch = Date.now();
  const kept = new Set();
  const parents = new Map(read.map((node) => [node.id, node.parent]));
  for (let id = current; parents.has(id) && !kept.has(id); id = parents.get(id) ?? ROOT) kept.add(id);
  const nodes = read.filter((node) => !empty.has(node.id)).map((node, order) => {
    const { id, text, name, label, created, author = parentOf(node) === ROOT ? WRITER : MODEL } = node;
    const fields = { id, parent: parentOf(node), pieces: text ? [{ text, ids: null }] : [], batch, order, name, created };
    const marks = author === CHANGED ? packMarks(CHANGED.repeat(text.length)) : undefined;
    return author === MODEL ? { ...fields, label, kept: kept.has(id) || undefined, end: "imported" } : { ...fields, typed: true, marks };
  });
  checkNodes(nodes);
  return { title: "", nodes, current: nodes.some((node) => node.id === current) ? current : ROOT, drafts: [] };
}

/** A random UUID, which these programs want as id; `crypto.randomUUID` is missing over plain HTTP. */
function newUuid() {
  const digits = (newId() + newId()).slice(0, 32).split("");
  digits[12] = "4";
  digits[16] = "89ab"[parseInt(digits[16], 16) % 4];
  return [0, 8, 12, 16, 20].map((from, k, starts) => digits.slice(from, starts[k + 1]).join("")).join("-");
}

/**
 * Return a story as the nodes of a file, and the current one's id. Drafts, and the text after the cursor at the end of
 * each branch, are nodes of their own.
 */
export function nodesOf(tree, drafts) {
  const ids = new Map([...tree.nodes.keys()].map((id) => [id, newUuid()]));
  const parentOf = (id) => ids.get(id) ?? null; // nodes without one begin the story
  /** @type {(LoomNode & { author: string })[]} */
  const nodes = [];
  const seen = [ROOT];
  for (let place = seen.pop(); place !== undefined; place = seen.pop()) {
    const children = tree.children(place);
    for (const node of [...children].reverse()) seen.push(node.id);
    const node = tree.nodes.get(place);
    if (!node) continue;
    const isMixed = node.typed && /[mc]/.test(node.marks ?? "");
    const author = node.typed ? (isMixed ? CHANGED : WRITER) : MODEL;
    nodes.push({ id: ids.get(place) ?? "", parent: parentOf(node.parent), text: textOf(node), author, name: node.name, created: node.created ?? node.batch });
    const after = children.length ? "" : tree.after(place);
    if (after) nodes.push({ id: newUuid(), parent: parentOf(place), text: after, author: CHANGED });
  }
  let current = parentOf(tree.current);
  for (const [place, text] of drafts) {
    const before = tree.text(place);
    if (text === before + tree.after(place)) continue;
    const isLonger = text.startsWith(before);
    const draft = { id: newUuid(), parent: isLonger ? parentOf(place) : null, text: isLonger ? text.slice(before.length) : text, author: WRITER };
    nodes.push(draft);
    if (place === tree.current) current = draft.id;
  }
  if (!nodes.length) nodes.push({ id: newUuid(), parent: null, text: "", author: WRITER });
  return { nodes, current: current ?? nodes[0].id };
}

export function exportLoomsidian(tree, drafts) {
  const { nodes, current } = nodesOf(tree, drafts);
  const made = nodes.map(({ id, parent, text, name }) => [
    id,
    { text, parentId: parent, collapsed: false, unread: false, bookmarked: Boolean(name), searchResultState: null },
  ]);
  return { current, hoisted: [], searchTerm: "", nodes: Object.fromEntries(made), generating: null };
}

const pad = (value) => String(value).padStart(2, "0");

function timestamp(milliseconds) {
  const time = new Date(milliseconds);
  const day = [time.getFullYear(), time.getMonth() + 1, time.getDate()].map(pad).join("-");
  return `${day}-${[time.getHours(), time.getMinutes(), time.getSeconds()].map(pad).join(".")}`;
}

export function exportLoom(tree, drafts) {
  const { nodes, current } = nodesOf(tree, drafts);
  const depths = new Map();
  let depth = 0;
  for (const { id, parent } of nodes) {
    depths.set(id, (depths.get(parent) ?? 0) + 1);
    depth = Math.max(depth, depths.get(id));
  }
  if (depth > DEEPEST) throw new Error(`this tree is ${depth} texts deep; loom opens at most ${DEEPEST}. Export it for Loomsidian or Tapestry Loom`);
  const root = { id: newUuid(), text: "", children: /** @type {any[]} */ ([]), mutable: false, visited: true, open: true };
  const sources = Object.fromEntries(SOURCES);
  const chapters = {};
  const made = new Map();
  for (const { id, parent, text, author, name, created = Date.now() } of nodes) {
    const meta = { creation_timestamp: timestamp(created), source: sources[author], modified: author === CHANGED };
    const node = { id, text, parent_id: parent ?? root.id, children: [], mutable: true, visited: true, open: true, meta };
    if (name) {
      const chapter = newUuid();
      chapters[chapter] = { id: chapter, root_id: id, title: name };
      Object.assign(node, { chapter_id: chapter });
    }
    made.set(id, node);
    (made.get(parent) ?? root).children.push(node);
  }
  return { root, chapters, selected_node_id: current };
}
