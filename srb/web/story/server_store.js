// @ts-check
// Stories on the server, shared with other devices. Nodes are only added; only marks of nodes and the story's
// background change.

import { search, stories, watch } from "../lib/api.js";
import { saveMessages } from "../lib/messages.js";
import { SaveQueue } from "../lib/save_queue.js";
import { Store, Stories } from "./browser_store.js";
import { endReason } from "./generation.js";
import { readBackground } from "./lorebook.js";
import { markMatch, searchTree } from "./search.js";
import { suggestTitle } from "./titles.js";
import { ROOT, textOf, Tree } from "./tree.js";

const PART = 1000; // results per request

const REST = 400; // milliseconds to collect changes of the background

const kept = (node) => (node.discarded ? false : node.kept ? true : null);

/** The properties of a node that may change. */
const remarks = (node) => ({ kept: kept(node), ends_at: node.endsAt ?? null, notes: node.name ?? null });

/** The background of a story, stored at its root, as a text that can be compared. */
const asRemark = (background) => ({ context: JSON.stringify(readBackground(background)) });

const differences = (wanted, known) => Object.entries(wanted).filter(([name, value]) => known[name] !== value);

/**
 * What only the page knows of typed text is in its settings. The settings of other nodes are what they were sampled
 * with.
 */
function settingsOf({ typed, settings, healed, stem, behind, passage, marks }) {
  const own = typed ? { behind, passage, marks } : { ...settings, heal: healed, stem };
  return Object.values(own).some((value) => value !== undefined) ? own : null;
}

/** The token ids of a text; null if they aren't known or stand for more than it. */
const idsOf = ({ pieces, typed, healed }) =>
  (typed && pieces.length) || healed || pieces.some((piece) => !piece.ids) ? null : pieces.flatMap((piece) => piece.ids);

/** Convert a node for the server. */
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
  suffix_logprob: node.follows ?? null,
  kept: kept(node),
  notes: node.name ?? null,
  settings: settingsOf(node),
  created: Math.floor((node.created ?? node.batch) / 1000) || null,
});

/** Sort nodes level by level, as the server does. */
function parentsFirst(nodes) {
  const below = Map.groupBy(nodes, (node) => node.parent);
  const ordered = [...(below.get(ROOT) ?? [])];
  for (const node of ordered) ordered.push(...(below.get(node.id) ?? [])); // it grows during the loop
  return ordered;
}

const parentOf = (node) => (node.parent === ROOT ? null : node.parent);

/** The stories on the server. */
export class ServerStories extends Stories {
  /** @param {import("./browser_store.js").Stories} browser stores what this device shows of each */
  constructor(browser) {
    super();
    this.browser = browser;
  }

  async list() {
    return (await stories()).data;
  }

  /** The server numbers nodes in its own order, each after its parent. */
  async make(title = "", nodes = [], background = null) {
    const ordered = parentsFirst(nodes);
    const sent = ordered.map((node) => ({ ...toServer(node), id: node.id, parent: parentOf(node) }));
    const story = await stories("", "POST", { title, nodes: sent, context: background });
    const made = nodes.length ? (await stories(`/${story.id}`)).nodes : [];
    const ids = new Map([[ROOT, ROOT]]);
    ordered.forEach((node, k) => ids.set(node.id, String(made[k].id)));
    return { story, ids };
  }

  rename({ id }, title) {
    return stories(`/${id}`, "PATCH", { title });
  }

  async remove(story) {
    await stories(`/${story.id}`, "DELETE");
    await this.browser.remove(story);
  }

  store(story) {
    return new ServerStore(story, this);
  }

  /**
   * The server searches all texts at once, for these words in a row; the last one may be a prefix. Drafts are on this
   * device.
   */
  async *find(query, open) {
    const others = new Map((await this.list()).filter(({ id }) => id !== open.id).map((story) => [story.id, story]));
    for (const story of others.values()) {
      const { drafts } = await this.page(story.id);
      yield { found: searchTree(new Tree(), drafts, query).map((each) => ({ ...each, story })), progress: "the drafts on this device" };
    }
    let before = /[\p{L}\p{N}]/u.test(query) ? Infinity : null;
    while (before !== null) {
      const place = before < Infinity && { before };
      const part = await search({ q: `"${query.replaceAll('"', " ")}"*`, limit: PART, ...place });
      const isOther = ({ story }) => others.has(story);
      const asFound = ({ story, node, snippet }) => ({ story: others.get(story), id: String(node), ...markMatch(snippet, query) });
      yield { found: part.data.filter(isOther).map(asFound), progress: "the newest texts on the server" };
      before = part.before;
    }
  }

  unsearched =
    "The search doesn't find text that is being written on another device, text after the cursor, words that start in one part of the tree and end in the next, or the middle or end of a word.";

  page(id) {
    return this.browser.page(id);
  }

  savePage(id, page, drafts, knows) {
    return this.browser.savePage(id, page, drafts, knows);
  }
}

class ServerStore extends Store {
  isShared = true;

  constructor(story, all) {
    super();
    this.story = story;
    this.all = all;
    this.path = `/${story.id}`;
    this.batches = new Map(); // the first node of each request
    this.remarks = new Map(); // by node, as the server has them
    this.unsent = new Map(); // by node, not yet on the server; stored with the page
    this.sending = new SaveQueue((ids) => (this.sent = this.#send(ids, this.sent)), saveMessages("What you changed"));
  }

  async load() {
    const [{ nodes, change, context }, { page, drafts }] = await Promise.all([stories(this.path), this.all.page(this.story.id)]);
    this.change = change;
    this.page = page;
    this.unsent = new Map(Object.entries(page.unsent ?? {}));
    this.remarks.set(ROOT, asRemark(context ?? {}));
    if (context && !this.unsent.has(ROOT)) page.beside = context;
    return { nodes: nodes.map((each) => this.#fromServer(each)), page, drafts };
  }

  async add(fields) {
    const parent = fields.parent === ROOT ? null : Number(fields.parent);
    const added = await stories(`${this.path}/nodes`, "POST", { ...toServer(fields), parent });
    if (!this.story.title) this.story = await this.all.rename(this.story, suggestTitle(fields));
    return { ...this.#fromServer(added), ...fields };
  }

  async save(nodes, page, drafts, knows) {
    this.page = page;
    const isNews = (id, said) => this.unsent.has(id) || differences(said, this.remarks.get(id)).length;
    const changed = nodes.filter((node) => this.remarks.has(node.id) && isNews(node.id, remarks(node)));
    for (const node of changed) this.unsent.set(node.id, remarks(node));
    const background = asRemark(page.beside);
    const isOther = isNews(ROOT, background);
    if (isOther) this.unsent.set(ROOT, background);
    const replaced = await this.#keepPage(drafts, knows);
    if (isOther) this.resting ??= setTimeout(() => this.#sendBackground(), REST);
    if (changed.length) await this.sending.save(...changed.map((node) => node.id));
    return replaced;
  }

  #sendBackground() {
    this.resting = null;
    return this.sending.save(ROOT);
  }

  #keepPage(drafts, knows) {
    return this.all.savePage(this.story.id, { ...this.page, unsent: Object.fromEntries(this.unsent) }, drafts, knows);
  }

  /** Send changes of these nodes that the server doesn't know, after the previous ones. */
  async #send(ids, before) {
    await before?.catch(() => {});
    for (const id of ids) {
      const wanted = this.unsent.get(id);
      if (!wanted) continue;
      const changed = differences(wanted, this.remarks.get(id));
      if (changed.length) await this.#patch(id, Object.fromEntries(changed));
      this.remarks.set(id, wanted);
      if (this.unsent.get(id) === wanted) this.unsent.delete(id);
    }
    await this.#keepPage();
  }

  async #patch(id, fields) {
    const [path, changes] = id === ROOT ? [this.path, { context: JSON.parse(fields.context) }] : [`${this.path}/nodes/${id}`, fields];
    await stories(path, "PATCH", changes).catch((error) => {
      if (error.status !== 404) throw error; // the story was deleted
    });
  }

  place(tree, id) {
    if (id === ROOT) return { story: this.story.id, prompt: "" };
    const isOther = tree.path(id).some(({ asked }) => asked); // the server's text there is a chat template's
    return { story: this.story.id, node: Number(id), ...(isOther && { prompt: tree.prompt(id) }) };
  }

  async watch(listener) {
    this.all.browser.follow(this.story.id, { ...listener, renamed() {}, deleted() {} }); // the server reports these
    if (this.unsent.size) this.sending.save(...this.unsent.keys()); // left by an earlier page
    const onEvent = (event) => {
      if (event.event === "node") listener.changed(this.#fromServer(event.node));
      if (event.event === "story") this.#hear(event.story, listener);
      return event.event === "deleted";
    };
    await watch(this.story.id, { after: this.change, onEvent });
    listener.deleted();
  }

  #hear(story, listener) {
    listener.renamed((this.story = story));
    const said = asRemark(story.context ?? {});
    if (this.unsent.has(ROOT) || !differences(said, this.remarks.get(ROOT)).length) return; // local changes win
    this.remarks.set(ROOT, said);
    listener.background(story.context ?? {});
  }

  /** Convert a node of the server. A growing one gets no text here: the page reads its request. */
  #fromServer(known) {
    this.remarks.set(String(known.id), { kept: known.kept, ends_at: known.ends_at, notes: known.notes ?? null });
    const each = { ...known, ...this.unsent.get(String(known.id)) };
    const { request, index, label, seed, length, settings } = each;
    const isTyped = each.author === "person";
    const { heal: healed, stem, behind, passage, marks, ...others } = settings ?? {};
    const [id, parent] = [String(each.id), each.parent === null ? ROOT : String(each.parent)];
    const isCut = each.ends_at !== null;
    const text = isCut ? [...each.text].slice(0, each.ends_at).join("") : each.text; // the server may not have the cut yet
    const batch = request ?? `below ${parent}`;
    if (!this.batches.has(batch)) this.batches.set(batch, each.id);
    const node = {
      id,
      parent,
      pieces: [{ text, ids: healed || isCut ? null : each.tokens }], // the server doesn't say whether a token was replaced
      typed: isTyped,
      ...(isTyped && { behind, passage, marks }),
      kept: each.kept === true,
      discarded: each.kept === false,
      batch: this.batches.get(batch),
      order: index ?? 0,
      label: label ?? undefined,
      name: each.notes ?? undefined,
      seed: seed ?? undefined,
      length: length ?? undefined,
      follows: each.suffix_logprob ?? undefined,
      settings: settings && !isTyped ? others : undefined,
      created: each.created * 1000,
      healed,
      stem,
      endsAt: each.ends_at ?? undefined,
    };
    if (!request) return { ...node, end: "" };
    if (each.finish_reason === null) return { ...node, request, index, after: 0, pieces: [], length: undefined };
    const { finish_reason, stop_reason } = each.ends_at === null ? each : { finish_reason: "length" };
    return { ...node, request, index, reason: { finish_reason, stop_reason }, end: endReason({ finish_reason, stop_reason }) };
  }
}
