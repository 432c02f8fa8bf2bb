// A story on the server, which other devices see and write, too. Its nodes are only added; what changes is whether one is kept.

import { stories, watch } from "./api.js";
import { reason } from "./generation.js";
import { Store, Stories } from "./store.js";
import { ROOT, textOf, titleOf } from "./tree.js";

const kept = (node) => (node.discarded ? false : node.kept ? true : null);

// What is said of a node, and may change.
const remarks = (node) => ({ kept: kept(node), ends_at: node.endsAt ?? null });

// The ids of a text; null where they aren't known, or stand for more than it.
const idsOf = ({ pieces, typed, healed }) =>
  typed || healed || pieces.some((piece) => !piece.ids) ? null : pieces.flatMap((piece) => piece.ids);

// A node of the page as the server has it.
const toServer = (node) => ({
  text: textOf(node),
  tokens: idsOf(node),
  author: node.typed ? "person" : "model",
  request: node.request ?? null,
  index: node.order ?? null,
  seed: node.seed ?? null,
  label: node.label ?? null,
  length: node.length ?? null,
  finish_reason: node.typed ? null : (node.reason?.finish_reason ?? "abort"),
  stop_reason: node.reason?.stop_reason ?? null,
  kept: kept(node),
  settings: node.settings ? { ...node.settings, heal: node.healed } : null,
  created: Math.floor((node.created ?? node.batch) / 1000) || null,
});

const parentOf = (node) => (node.parent === ROOT ? null : node.parent);

// The stories of the server.
export class ServerStories extends Stories {
  // browser: keeps what this device shows of each.
  constructor(browser) {
    super();
    this.browser = browser;
  }

  async list() {
    return (await stories()).data;
  }

  make(title = "", nodes = []) {
    return stories("", "POST", { title, nodes: nodes.map((node) => ({ ...toServer(node), id: node.id, parent: parentOf(node) })) });
  }

  rename({ id }, title) {
    return stories(`/${id}`, "PATCH", { title });
  }

  remove({ id }) {
    return stories(`/${id}`, "DELETE");
  }

  store(story) {
    return new StoryStore(story, this);
  }

  page(id) {
    return this.browser.page(id);
  }

  savePage(id, page) {
    return this.browser.savePage(id, page);
  }
}

class StoryStore extends Store {
  isShared = true;

  constructor(story, all) {
    super();
    Object.assign(this, { story, all });
    this.path = `/${story.id}`;
    this.batches = new Map(); // the first node of each request
    this.remarks = new Map(); // by node, as the server knows them
  }

  async load() {
    const [{ nodes, change }, page] = await Promise.all([stories(this.path), this.all.page(this.story.id)]);
    this.change = change;
    return { nodes: nodes.map((each) => this.#fromServer(each)), page };
  }

  async add(fields) {
    const parent = fields.parent === ROOT ? null : Number(fields.parent);
    const added = await stories(`${this.path}/nodes`, "POST", { ...toServer(fields), parent });
    if (!this.story.title) this.story = await this.all.rename(this.story, titleOf(fields));
    return { ...this.#fromServer(added), ...fields };
  }

  async save(nodes, page) {
    const remark = (node) => {
      const known = this.remarks.get(node.id);
      const changed = Object.entries(remarks(node)).filter(([name, value]) => known && known[name] !== value);
      if (!changed.length) return null;
      this.remarks.set(node.id, remarks(node));
      return stories(`${this.path}/nodes/${node.id}`, "PATCH", Object.fromEntries(changed));
    };
    await Promise.all([this.all.savePage(this.story.id, page), ...nodes.map(remark)]);
  }

  place(_tree, id) {
    return id === ROOT ? { story: this.story.id, prompt: "" } : { story: this.story.id, node: Number(id) };
  }

  async watch(listener) {
    const onEvent = (event) => {
      if (event.event === "node") listener.changed(this.#fromServer(event.node));
      if (event.event === "story") listener.renamed((this.story = event.story));
      return event.event === "deleted";
    };
    await watch(this.story.id, { after: this.change, onEvent });
    listener.deleted();
  }

  // A node of the server as the page has it. One that grows has no text here: the page reads its request.
  #fromServer(each) {
    const { request, index, label, seed, length, settings } = each;
    const { heal: healed, ...others } = settings ?? {};
    const [id, parent] = [String(each.id), each.parent === null ? ROOT : String(each.parent)];
    const batch = request ?? `below ${parent}`;
    if (!this.batches.has(batch)) this.batches.set(batch, each.id);
    this.remarks.set(id, { kept: each.kept, ends_at: each.ends_at });
    const node = {
      id,
      parent,
      pieces: [{ text: each.text, ids: each.tokens }],
      typed: each.author === "person",
      kept: each.kept === true,
      discarded: each.kept === false,
      batch: this.batches.get(batch),
      order: index ?? 0,
      label: label ?? undefined,
      seed: seed ?? undefined,
      length: length ?? undefined,
      settings: settings ? others : undefined,
      created: each.created * 1000,
      healed,
      endsAt: each.ends_at ?? undefined,
    };
    if (!request) return { ...node, end: "" };
    if (each.finish_reason === null) return { ...node, request, index, after: 0, pieces: [], length: undefined };
    const { finish_reason, stop_reason } = each.ends_at === null ? each : { finish_reason: "length" };
    return { ...node, request, index, reason: { finish_reason, stop_reason }, end: reason({ finish_reason, stop_reason }) };
  }
}
