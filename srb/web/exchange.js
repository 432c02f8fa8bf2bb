// Trees in files: what a story is made of, without what was only there to be looked at. Pure.

// What a node has in a file as it is.
const FIELDS = ["id", "parent", "typed", "label", "kept", "discarded", "batch", "created", "order", "seed", "settings", "until", "length", "end", "whole", "healed"];

// A piece is [text, id or ids, probability].
const pack = ({ text, ids, p }) => [text, ids?.length === 1 ? ids[0] : ids, ...(p === undefined ? [] : [Number(p.toPrecision(3))])];

function unpack(piece) {
  if (!Array.isArray(piece)) return piece;
  const [text, ids, p] = piece;
  return { text, ids: typeof ids === "number" ? [ids] : ids, ...(p === undefined ? {} : { p }) };
}

const isSet = ([, value]) => value !== "" && value !== false;

// about: what else the file says: model, title, settings.
export function exported(tree, { settings = {}, ...about } = {}) {
  const nodes = [...tree.nodes.values()].map((node) => ({
    ...Object.fromEntries(FIELDS.filter((name) => node[name] !== undefined).map((name) => [name, node[name]])),
    pieces: node.pieces.map(pack),
  }));
  const set = Object.fromEntries(Object.entries(settings).filter(isSet));
  return { format: "srb-tree", version: 2, exported: new Date().toISOString(), ...about, settings: set, current: tree.current, nodes };
}

// What Tree.import takes, of a file of any version. Throws an Error in words.
export function imported(data) {
  if (data?.format !== "srb-tree" || ![1, 2].includes(data.version) || !Array.isArray(data.nodes))
    throw new Error("this file is not a tree that this page has exported");
  const isPacked = (node) => data.version === 2 && Array.isArray(node?.pieces);
  return { ...data, nodes: data.nodes.map((node) => (isPacked(node) ? { ...node, pieces: node.pieces.map(unpack) } : node)) };
}
