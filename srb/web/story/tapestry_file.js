// @ts-check
// Tapestry Loom's files: a header, and a tree as rkyv 0.8 archives it (little-endian, aligned, with relative pointers of
// 32 bits). What a pointer points at comes before it, so the file ends with the root. The offsets are those of version 0.

import { MODEL, WRITER } from "./authorship.js";
import { NAME_LENGTH, nodesOf, storyOf } from "./loom_files.js";
import { shorten } from "./titles.js";
import { newId } from "./tree.js";

const MAGIC = "VersionedTapestryWeave__";
const HEADER = 32; // bytes; the version is at 24
const ROOT = { roots: 12, active: 32, bookmarked: 64, thread: 80, metadata: 88, size: 112 }; // at 0: the nodes
// An id and its node, in a hash table.
const BUCKET = { id: 16, parent: 32, children: 64, active: 80, marked: 81, content: 84, metadata: 96, model: 112, size: 144 };
const TOKEN_SIZE = 24;
const ENTRY_SIZE = 16; // of an index map: an id, or two strings
const INLINE = 8; // the bytes of a string that is stored in place of its pointer
const EMPTY = 0xff; // the control byte of an empty bucket
const ALIGNMENT = 16; // of what has an id
const GROUP = 16; // control bytes that are looked at together
const SEED = 0x517cc1b727220a95n; // of rkyv's hash
const UNKNOWN = "Unknown Model"; // Tapestry Loom's own label
const LAST_TIME = 2 ** 48 - 1; // of a ULID

const decode = (bytes) => new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes);

class Archive {
  /** @param {ArrayBuffer} buffer */
  constructor(buffer) {
    this.view = new DataView(buffer, HEADER);
    this.left = this.view.byteLength; // nothing is pointed at twice, so no more than this is read
  }

  number(at) {
    return this.view.getUint32(at, true);
  }

  isSet(at) {
    const value = this.view.getUint8(at);
    if (value > 1) throw new RangeError(`${value} is neither true nor false`);
    return value === 1;
  }

  id(at) {
    const half = (from) => this.view.getBigUint64(from, true).toString(16).padStart(16, "0");
    return half(at + 8) + half(at);
  }

  /** Follow the pointer at `at`, which is relative to `base`, to `size` bytes. Returns where they start. */
  follow(at, size, base = at) {
    const to = base + this.view.getInt32(at, true);
    this.left -= size;
    if (to < 0 || to + size > this.view.byteLength || this.left < 0) throw new RangeError(`${at} points out of the file`);
    return to;
  }

  /** Return the places of the items of a vector or, with its length elsewhere, of an index map. */
  items(at, size, count = this.number(at + 4)) {
    const from = this.follow(at, count * size);
    return Array.from({ length: count }, (_, k) => from + k * size);
  }

  /** Return the number of a hash table's items, and of its buckets: none if it's empty, or at least one more. */
  counts(at) {
    const [count, capacity] = [this.number(at + 4), this.number(at + 8)];
    if (count ? count >= capacity : this.number(at) !== 1 || capacity) throw new RangeError(`${at} is not a table`);
    return { count, capacity };
  }

  entries(at) {
    return this.items(at + 12, ENTRY_SIZE, this.counts(at).count);
  }

  slice(from, length) {
    return new Uint8Array(this.view.buffer, HEADER + from, length);
  }

  bytes(at) {
    const length = this.number(at + 4);
    return this.slice(this.follow(at, length), length);
  }

  string(at) {
    const length = this.number(at);
    if ((length & 0xc0) !== 0x80) {
      const inline = this.slice(at, INLINE);
      const end = inline.indexOf(EMPTY);
      return decode(end < 0 ? inline : inline.subarray(0, end));
    }
    const size = (length & 0x3f) | ((length & ~0xff) >>> 2);
    return decode(this.slice(this.follow(at + 4, size, at), size));
  }

  /** Return the places of the buckets of a hash table. */
  buckets(at, size) {
    const { count, capacity } = this.counts(at);
    if (!count) return [];
    const control = this.slice(this.follow(at, capacity), capacity);
    const from = control.byteOffset - HEADER;
    const full = [...control.keys()].filter((k) => control[k] < 0x80).map((k) => from - (k + 1) * size);
    if (full.length !== count) throw new RangeError(`${full.length} of ${count} texts are there`);
    return full;
  }
}

function readNode(archive, at) {
  const content = at + BUCKET.content;
  const parts = archive.isSet(content) ? archive.items(content + 4, TOKEN_SIZE).map((token) => archive.bytes(token)) : [archive.bytes(content + 4)];
  const model = archive.isSet(at + BUCKET.model) ? archive.string(at + BUCKET.model + 4) : null;
  const children = archive.entries(at + BUCKET.children).map((entry) => archive.id(entry));
  return { bytes: parts.flatMap((part) => [...part]), children, model, isMarked: archive.isSet(at + BUCKET.marked) };
}

/** Return how many bytes at the end are the beginning of a character. */
function unfinished(bytes) {
  const start = bytes.findLastIndex((byte) => (byte & 0xc0) !== 0x80);
  const length = bytes.length - start;
  const needed = { 0xc: 2, 0xd: 2, 0xe: 3, 0xf: 4 }[bytes[start] >> 4] ?? 1;
  return start >= 0 && length < needed ? length : 0;
}

function readWeave(buffer) {
  const archive = new Archive(buffer);
  if (archive.view.byteLength % ALIGNMENT) throw new RangeError("the root isn't aligned");
  const root = archive.view.byteLength - ROOT.size;
  const known = new Map(archive.buckets(root, BUCKET.size).map((at) => [archive.id(at), readNode(archive, at)]));
  const metadata = Object.fromEntries(archive.entries(root + ROOT.metadata).map((entry) => [archive.string(entry), archive.string(entry + 8)]));
  const read = [];
  /** @type {{ id: string, parent: string | null, before: number[] }[]} */
  const left = archive.entries(root + ROOT.roots).map((entry) => ({ id: archive.id(entry), parent: null, before: [] })).reverse();
  for (let each = left.pop(); each; each = left.pop()) {
    const { id, parent, before } = each;
    const node = known.get(id);
    if (!node) throw new RangeError(`text ${id} is missing, or it is there twice`);
    known.delete(id);
    const bytes = [...before, ...node.bytes];
    // A token may end within a character, which the next text completes.
    const end = bytes.length - (node.children.length ? unfinished(bytes) : 0);
    const text = decode(new Uint8Array(bytes.slice(0, end)));
    const name = node.isMarked ? shorten(text, NAME_LENGTH) : undefined;
    const label = node.model === UNKNOWN ? undefined : (node.model ?? undefined);
    read.push({ id, parent, text, name, label, author: node.model === null ? WRITER : MODEL, created: parseInt(id.slice(0, 12), 16) });
    for (const child of node.children.reverse()) left.push({ id: child, parent: id, before: bytes.slice(end) });
  }
  if (known.size) throw new RangeError(`${known.size} texts follow none`);
  const current = archive.isSet(root + ROOT.active) ? archive.id(root + ROOT.active + 16) : "";
  return { ...storyOf(read, current), title: metadata.title ?? "", notes: metadata.notes ?? "" };
}

export function importTapestry(buffer) {
  if (buffer.byteLength < HEADER || decode(new Uint8Array(buffer, 0, MAGIC.length)) !== MAGIC) throw new Error("this file isn't Tapestry Loom's");
  const version = new DataView(buffer).getBigUint64(MAGIC.length, true);
  if (version !== 0n)
    throw new Error(`this file has version ${version} of Tapestry Loom's format; the page reads version 0, which Tapestry Loom 0.13 writes. Copy the text there, and paste it here`);
  try {
    return readWeave(buffer);
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    throw new Error("this file is damaged; open it in Tapestry Loom, and save it again", { cause: error });
  }
}

class Writer {
  view = new DataView(new ArrayBuffer(1 << 16));
  end = 0;

  /** Append `size` zero bytes, aligned. Returns where they start. */
  room(size, align = 1) {
    const at = Math.ceil(this.end / align) * align;
    this.end = at + size;
    if (this.end > this.view.byteLength) {
      const larger = new Uint8Array(2 * this.end);
      larger.set(new Uint8Array(this.view.buffer));
      this.view = new DataView(larger.buffer);
    }
    return at;
  }

  bytes(bytes) {
    const at = this.room(bytes.length);
    new Uint8Array(this.view.buffer).set(bytes, at);
    return at;
  }

  number(at, value) {
    this.view.setUint32(at, value, true);
  }

  set(at) {
    this.view.setUint8(at, 1);
  }

  point(at, to, base = at) {
    this.view.setInt32(at, to - base, true);
  }

  id(at, id) {
    for (const half of halves(id)) this.view.setBigUint64((at += 8) - 8, half, true);
  }
}

const halves = (id) => [BigInt(`0x${id.slice(16)}`), BigInt(`0x${id.slice(0, 16)}`)];

const rotated = (hash) => (hash << 5n) | (hash >> 59n);
const hashOf = (id) => halves(id).reduce((hash, half) => BigInt.asUintN(64, (BigInt.asUintN(64, rotated(hash)) ^ half) * SEED), 0n);

/** Assign buckets to ids. Returns the index of the id in each bucket, and the control bytes. */
function layOut(ids) {
  const capacity = Math.max(Math.floor((ids.length * 8) / 7), ids.length + 1);
  const reach = Math.ceil(capacity / GROUP) * GROUP;
  const control = new Uint8Array(reach + GROUP - 1).fill(EMPTY); // the last ones repeat the first ones
  const mask = 2 ** Math.ceil(Math.log2(control.length)) - 1;
  const buckets = Array(capacity).fill(null);
  ids.forEach((id, k) => {
    const hash = hashOf(id);
    const isFree = (byte) => byte === EMPTY;
    let at = Number(hash % BigInt(capacity));
    for (let stride = GROUP; !control.subarray(at, at + GROUP).some(isFree); stride += GROUP) {
      do at = (at + stride) & mask;
      while (at >= reach && (stride += GROUP));
    }
    const bucket = (at + control.subarray(at, at + GROUP).findIndex(isFree)) % capacity;
    buckets[bucket] = k;
    control[bucket] = Number(hash >> 57n);
    if (capacity + bucket < control.length) control[capacity + bucket] = control[bucket];
  });
  return { buckets, control };
}

// Each of these writes what is pointed at, and returns a function that writes the pointers at a place.

function writeTable(writer, ids, size, align, write) {
  const { buckets, control } = layOut(ids);
  const places = buckets.map((k) => (k === null ? null : write(k)));
  if (!ids.length) return (at) => writer.point(at, at + 1);
  const from = writer.room(buckets.length * size, align);
  places.reverse().forEach((place, k) => place?.(from + k * size));
  const to = writer.bytes(control);
  return (at) => {
    writer.point(at, to);
    writer.number(at + 4, ids.length);
    writer.number(at + 8, buckets.length);
  };
}

/** Write an index map of ids; of none with 4 bytes of alignment, for one of strings. */
function writeIds(writer, ids, align = ALIGNMENT) {
  const table = writeTable(writer, ids, 4, 4, (k) => (at) => writer.number(at, k));
  const from = writer.room(ids.length * ENTRY_SIZE, align);
  ids.forEach((id, k) => writer.id(from + k * ENTRY_SIZE, id));
  return (at) => {
    table(at);
    writer.point(at + 12, from);
  };
}

function writeModel(writer, label) {
  const bytes = new TextEncoder().encode(label);
  const from = writer.bytes(bytes);
  const metadata = writeIds(writer, [], 4);
  return (at) => {
    writer.set(at);
    writer.number(at + 4, 0x80 | bytes.length); // of a string that isn't stored here
    writer.point(at + 8, from, at + 4);
    metadata(at + 12);
  };
}

function writeText(writer, text) {
  const bytes = new TextEncoder().encode(text);
  const from = writer.bytes(bytes);
  return (at) => {
    writer.point(at, from);
    writer.number(at + 4, bytes.length);
  };
}

function writeNode(writer, node, current) {
  const children = writeIds(writer, node.children);
  const text = writeText(writer, node.text);
  const metadata = writeIds(writer, [], 4);
  const model = node.author === MODEL ? writeModel(writer, UNKNOWN) : null;
  return (at) => {
    writer.id(at, node.id);
    writer.id(at + BUCKET.id, node.id);
    if (node.parent) {
      writer.set(at + BUCKET.parent);
      writer.id(at + BUCKET.parent + 16, node.parent);
    }
    children(at + BUCKET.children);
    if (node.id === current) writer.set(at + BUCKET.active);
    if (node.name) writer.set(at + BUCKET.marked);
    text(at + BUCKET.content + 4);
    metadata(at + BUCKET.metadata);
    model?.(at + BUCKET.model);
  };
}

/** Write a tree as a file. Parents are before their children; ids are ULIDs in hexadecimal digits. */
export function writeWeave(nodes, current) {
  const writer = new Writer();
  const idsOf = (some) => some.map((node) => node.id);
  const table = writeTable(writer, idsOf(nodes), BUCKET.size, ALIGNMENT, (k) => writeNode(writer, nodes[k], current));
  const roots = writeIds(writer, idsOf(nodes.filter((node) => !node.parent)));
  const marked = writeIds(writer, idsOf(nodes.filter((node) => node.name)));
  const thread = writer.room(0, ALIGNMENT);
  const metadata = writeIds(writer, [], 4);
  const root = writer.room(ROOT.size, ALIGNMENT);
  table(root);
  roots(root + ROOT.roots);
  writer.set(root + ROOT.active);
  writer.id(root + ROOT.active + 16, current);
  marked(root + ROOT.bookmarked);
  writer.point(root + ROOT.thread, thread);
  metadata(root + ROOT.metadata);
  const file = new Uint8Array(HEADER + writer.end); // version 0
  file.set(new TextEncoder().encode(MAGIC));
  file.set(new Uint8Array(writer.view.buffer, 0, writer.end), HEADER);
  return file;
}

/** Make a ULID: milliseconds since 1970, and random digits. */
const newUlid = (created) => Math.min(Math.max(Math.round(created), 0), LAST_TIME).toString(16).padStart(12, "0") + newId();

export function exportTapestry(tree, drafts) {
  const { nodes, current } = nodesOf(tree, drafts);
  const ids = new Map(nodes.map(({ id, created = Date.now() }) => [id, newUlid(created)]));
  const idOf = (id) => ids.get(id) ?? "";
  const made = nodes.map((node) => ({ ...node, id: idOf(node.id), parent: node.parent && idOf(node.parent), children: /** @type {string[]} */ ([]) }));
  const known = new Map(made.map((node) => [node.id, node]));
  for (const { id, parent } of made) known.get(parent ?? "")?.children.push(id);
  return writeWeave(made, idOf(current));
}
