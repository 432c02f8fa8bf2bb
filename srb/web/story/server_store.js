// @ts-check
// Stories on the server, shared with other devices. Nodes are only added; only marks of nodes and the story's
// background change.

import { search, stories, watch } from "../lib/api.js";
import { loadLocal, saveLocal } from "../lib/local_storage.js";
import { saveMessages } from "../lib/messages.js";
import { SaveQueue } from "../lib/save_queue.js";
import { Store, Stories, TRASH_MILLISECONDS } from "./browser_store.js";
import { dropCopy, keepCopy, listCopies, readCopy } from "./copies.js";
import { Drafts, isSameDraft, nextVersion } from "./drafts.js";
import { endReason } from "./generation.js";
import { readBackground } from "./lorebook.js";
import { same } from "./merging.js";
import { markMatch, searchTree } from "./search.js";
import { composed } from "./text_merge.js";
import { suggestTitle } from "./titles.js";
import { newId, ROOT, textOf, Tree } from "./tree.js";
import { ChangeSet } from "../vendor/codemirror.js";

const PART = 1000; // results per request

const PAUSE = 500; // milliseconds without a key after which drafts are sent
const LONGEST_PAUSE = 2000; // while somebody types on

const LOOK = 5000; // milliseconds between two looks whether a story was restored

const REMOVED = "srb-removed"; // when this browser has put stories of the server into the trash, by id

const CONTEXT = "context"; // memory, note and lore
const SERVER = "server"; // the keys of what the server has
const MOST_SEEN = 20; // browsers
const PLACE = Symbol("where the writer is");
const TITLE = Symbol("the title that the draft suggests");

const numberOf = (place) => (place === ROOT ? 0 : Number(place));
const placeOf = ({ node }) => (node ? String(node) : ROOT);

const kept = (node) => (node.discarded ? false : node.kept ? true : null);

/** The properties of a node that may change. */
const remarks = (node) => ({ kept: kept(node), ends_at: node.endsAt ?? null, notes: node.name ?? null });

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

/** Whether a request failed because the server can't be reached. */
const isAway = ({ status }) => [undefined, 502, 504].includes(status);

/** Sort nodes level by level, as the server does. */
function parentsFirst(nodes) {
  const below = Map.groupBy(nodes, (node) => node.parent);
  const ordered = [...(below.get(ROOT) ?? [])];
  for (const node of ordered) ordered.push(...(below.get(node.id) ?? [])); // it grows during the loop
  return ordered;
}

const parentOf = (node) => (node.parent === ROOT ? null : node.parent);

/** @typedef {import("./browser_store.js").StoreListener} StoreListener */

/** Whether a story's place is one that a page has sent. */
const isPlace = (place) => typeof place?.current === "string" && Array.isArray(place.shown);

/** Where a page is, without the cursor. */
const placeOfPage = ({ current = ROOT, shown = [current] }) => ({ current, shown });

/** The stories on the server. */
export class ServerStories extends Stories {
  /** @param {import("./browser_store.js").Stories} browser stores what this device shows of each */
  constructor(browser) {
    super();
    this.browser = browser;
    this.restored = () => {}; // looks again whether the open story is out of the trash
  }

  async list() {
    const { data } = await stories().catch(async (error) => {
      const copies = isAway(error) ? await listCopies().catch(() => []) : [];
      if (!copies.length) throw error;
      return { data: copies };
    });
    return data.map(({ changed, place, ...story }) => ({ ...story, changed: changed * 1000, words: place?.words }));
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

  rename(story, title) {
    return stories(`/${story.id}`, "PATCH", { title, since: story.change });
  }

  async remove({ id }) {
    await stories(`/${id}`, "DELETE");
    saveLocal(REMOVED, { ...loadLocal(REMOVED), [id]: Date.now() });
  }

  /** What this browser shows of stories that have left the trash goes, too. */
  async trash() {
    const { data } = await stories("?deleted=true");
    const removed = Object.entries(loadLocal(REMOVED));
    const old = removed.filter(([, at]) => at < Date.now() - TRASH_MILLISECONDS).map(([id]) => id);
    for (const id of old) await this.browser.erase({ id, title: "" });
    if (old.length) saveLocal(REMOVED, Object.fromEntries(removed.filter(([id]) => !old.includes(id))));
    return data;
  }

  async restore({ id }) {
    const { [id]: _, ...others } = loadLocal(REMOVED);
    saveLocal(REMOVED, others);
    await stories(`/${id}`, "PATCH", { deleted: null });
    this.restored(); // it may be the open one
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
      const { drafts } = await this.browser.page(story.id);
      yield { found: searchTree(new Tree(), new Drafts(drafts).all, query).map((each) => ({ ...each, story })), progress: "the drafts on this device" };
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
}

/**
 * @typedef {object} Known what a browser knows of a draft, or of memory, note and lore, on the server
 * @property {string} me this browser
 * @property {any} value as the server has it
 * @property {number} change of the story, which wrote it
 * @property {Record<string, string>} seen the last write of each browser that is in it
 * @property {{ write: string, value: any, changes?: any }} [sent] what was sent without an answer: it may be there
 */

const isSame = (a, b) => (typeof a?.memory === "string" || typeof b?.memory === "string" ? same(a, b) : isSameDraft(a, b));

/** @returns {{ place: string, value: any, change: number, seen?: Record<string, string> }} */
const fromDraft = ({ node, text, metadata, change }) => {
  const { seen, ...known } = metadata ?? {};
  const value = { text: text ?? undefined, ...known };
  return { place: placeOf({ node }), value, change, seen };
};

const fromContext = ({ context, change }) => ({ place: CONTEXT, value: readBackground(context ?? {}), change, seen: context?.seen });

const missing = (error) => {
  if (error.status !== 404) throw error; // else the story is in the trash, perhaps for a while
};

class ServerStore extends Store {
  isShared = true;

  constructor(story, all) {
    super(story, all, all.browser);
    this.path = `/${story.id}`;
    this.batches = new Map(); // the first node of each request
    this.placeChange = 0; // of the story, which wrote this page's last place
    this.remarks = new Map(); // by node, as the server has them
    this.unsent = new Map(); // by node, not yet on the server; stored with the page
    this.first = /** @type {any[]} */ ([]); // what the server had when this page was opened
    this.background = undefined; // as it was sent, if that isn't known by place
    this.known = new Map(); // by place, what couldn't be stored of what this browser knows
    this.unsaid = new Map(); // by place, drafts that have become nodes which aren't known yet
    this.waiting = new Set(); // places whose drafts are to be sent
    this.typing = new SaveQueue((items) => (this.typed = this.#sendTyped(items, this.typed)), saveMessages("What you typed last", "on the server"));
    this.sending = new SaveQueue((ids) => (this.sent = this.#send(ids, this.sent)), saveMessages("What you changed"));
  }

  async load() {
    const [story, { page, drafts }] = await Promise.all([this.#read(), this.loadPage()]);
    const { nodes, change, context, place, drafts: known = [] } = story;
    this.change = change;
    const { [ROOT]: isBackgroundUnsent, ...unsent } = page.unsent ?? {}; // so srb 0.1.0 stored a background
    this.background = isBackgroundUnsent ? undefined : page.beside;
    this.unsent = new Map(Object.entries(unsent));
    if (isPlace(place) && !page.isPlaceUnsent) Object.assign(page, place);
    this.knownPlace = placeOfPage(page);
    this.isPlaceUnsent = page.isPlaceUnsent ?? false;
    this.first = [fromContext({ context, change }), ...known.map(fromDraft)];
    this.suggested = suggestTitle({ pieces: [{ text: known.find(({ node }) => !node)?.text ?? "" }] });
    return { nodes: nodes.map((each) => this.#fromServer(each)), page, drafts };
  }

  /** Ask for the story. If the server can't be reached, return what this browser has of it. */
  async #read() {
    try {
      const { nodes, drafts, ...story } = await stories(this.path);
      this.#copy(story, nodes);
      return { nodes, drafts, ...story };
    } catch (error) {
      const copy = isAway(error) ? await readCopy(this.story.id).catch(() => null) : null;
      if (!copy) throw error;
      const { nodes: _, ...head } = copy;
      this.head = head;
      return { ...copy, place: null }; // this browser's page may have gone on since
    }
  }

  #copy(story, nodes) {
    this.head = story;
    keepCopy(story, nodes).catch(() => {}); // which nobody needs while the server is there
  }

  async begin(replica) {
    await super.begin(replica);
    await this.#hear(...this.first);
  }

  /** Find what isn't on the server yet. */
  #findUnsent() {
    const places = [CONTEXT, ...this.replica.drafts.places];
    const change = (all) => {
      places.forEach((place, k) => (all[k].sent || !isSame(all[k].value, this.#valueOf(place))) && this.waiting.add(place));
      return all;
    };
    return this.#exchange(places, { change });
  }

  async add(fields) {
    const parent = fields.parent === ROOT ? null : Number(fields.parent);
    const added = await stories(`${this.path}/nodes`, "POST", { ...toServer(fields), parent });
    const isDraftsTitle = !this.batches.size && this.story.title === this.suggested; // and not yet generated from
    if (!this.story.title || isDraftsTitle) await this.name(suggestTitle(fields));
    return { ...this.#fromServer(added), ...fields };
  }

  /** With what is to be sent yet. */
  get own() {
    return { ...super.own, unsent: Object.fromEntries(this.unsent), isPlaceUnsent: this.isPlaceUnsent };
  }

  async save(nodes, places, isTyped) {
    const { own } = this.replica;
    const isMove = JSON.stringify(placeOfPage(own)) !== JSON.stringify(this.knownPlace);
    if (isMove) this.knownPlace = placeOfPage(own);
    this.isPlaceUnsent ||= isMove || isTyped;
    for (const place of [...places, CONTEXT]) this.waiting.add(place);
    this.#sendSoon(isMove || document.hidden ? 0 : PAUSE);
    const changed = this.#note(nodes);
    const sent = changed.length ? this.sending.save(...changed) : null;
    await this.#exchange(places, { own: true }).catch((error) => {
      throw Object.assign(error, { isCopy: true }); // the server has it, or will have it
    });
    await sent;
  }

  /** Note changed remarks. Returns the nodes that have some. */
  #note(nodes) {
    const isNews = (id, said) => this.unsent.has(id) || differences(said, this.remarks.get(id)).length;
    const changed = nodes.filter((node) => this.remarks.has(node.id) && isNews(node.id, remarks(node)));
    for (const node of changed) this.unsent.set(node.id, remarks(node));
    return changed.map(({ id }) => id);
  }

  leave(nodes) {
    this.#note(nodes);
    super.leave([]);
  }

  /**
   * Exchange drafts with what this browser has stored. `change` gets what it knows of the server, and returns what it
   * knows now.
   * @param {string[]} places
   * @param {object} [what]
   * @param {boolean} [what.own]
   * @param {(known: Known[]) => Known[]} [what.change]
   */
  async #exchange(places, { own, change } = {}) {
    const ids = places.filter((place) => place !== CONTEXT);
    const keys = change ? places.map((place) => [this.story.id, SERVER, place]) : [];
    const knowing = (values) => {
      const before = keys.map(([, , place], k) => this.known.get(place) ?? values[k] ?? this.#unknown(place));
      const now = change?.(before) ?? [];
      const news = keys.flatMap((key, k) => (now[k] === values[k] ? [] : [/** @type {[any, any]} */ ([key, now[k]])]));
      for (const [[, , place], known] of news) this.known.set(place, known); // until it is stored
      return news;
    };
    await this.exchange({ places: ids, own, keys, change: knowing });
    for (const [, , place] of keys) this.known.delete(place);
  }

  /** @returns {Known} */
  #unknown(place) {
    return { me: newId(), value: place === CONTEXT ? readBackground(this.background) : undefined, change: -1, seen: {} };
  }

  #valueOf(place) {
    return place === CONTEXT ? readBackground(this.replica.shared.beside) : this.replica.drafts.get(place);
  }

  /** Take over what the server has. What of it was made without this page's last changes is merged with them. */
  async #hear(...news) {
    const isEarly = ({ value }) => value?.into && !this.replica.tree.has(value.into);
    const heard = news.filter((each) => !isEarly(each));
    for (const each of news.filter(isEarly)) this.unsaid.set(each.place, each);
    const change = (all) =>
      all.map((known, k) => {
        const { place, value, change: number, seen = {} } = heard[k];
        if (number <= known.change) return known;
        const now = { ...known, value, change: number, seen };
        if (isSame(value, known.value) && same(seen, known.seen)) return now; // it is what is sent that is new, if anything
        const { sent, ...others } = now;
        const base = sent && seen[known.me] === sent.write ? sent.value : known.value;
        if (place === CONTEXT) this.replica.meet({ beside: base }, { beside: value });
        else this.#meetDraft(place, base, value, sent && base !== sent.value ? [sent.changes] : []);
        return others;
      });
    if (heard.length) await this.#exchange(heard.map(({ place }) => place), { change }).catch(() => {}); // what isn't stored is in the page
    const isOther = heard.filter(({ place, value }) => !isSame(value, this.#valueOf(place)));
    for (const { place } of isOther) this.waiting.add(place);
    if (isOther.length) this.#sendSoon(PAUSE);
  }

  /** `lost` are the changes that were sent and aren't in the value. */
  #meetDraft(place, base, value, lost) {
    const { drafts } = this.replica;
    const unsent = [...lost, ...this.unsentOf(place)];
    if (lost.length) drafts.unsent.set(place, composed(unsent)); // also if the value is the same as before
    this.replica.meetDraft(place, base, value, unsent);
  }

  /** Return what to send of a value. */
  #next(place, before) {
    const write = newId();
    if (place === CONTEXT) return { write, value: this.#valueOf(place) };
    const { drafts } = this.replica;
    const changes = drafts.since(place, before, this.unsentOf(place));
    drafts.unsent.set(place, ChangeSet.empty(changes.newLength));
    return { write, value: nextVersion(drafts.get(place), before, [changes]), changes: changes.toJSON() };
  }

  /** Send a draft, or memory, note and lore, to the server. What was sent without an answer is sent again first. */
  async #sendValue(place) {
    /** @type {Known | null} */
    let wanted = null;
    const change = (/** @type {any[]} */ [known]) => {
      const value = this.#valueOf(place);
      if (!known.sent && isSame(value, known.value)) return [known];
      wanted = { ...known, sent: known.sent ?? this.#next(place, known.value) };
      return [wanted];
    };
    await this.#exchange([place], { change }).catch(() => {}); // the desk reports it
    if (!wanted) return;
    const { me, sent: { write, value }, change: since, seen: others } = /** @type {any} */ (wanted);
    const { [me]: _, ...rest } = others;
    const seen = { ...Object.fromEntries(Object.entries(rest).slice(1 - MOST_SEEN)), [me]: write };
    await this.#hear(await this.#put(place, value, Math.max(since, 0), seen));
  }

  /** Write a value, unless the server has a newer one, which is returned then. */
  async #put(place, value, since, seen) {
    const path = place === CONTEXT ? this.path : `${this.path}/drafts/${numberOf(place)}`;
    const { text = null, ...metadata } = value ?? {};
    const body = place === CONTEXT ? { context: { ...value, seen }, since } : { text, metadata: { ...metadata, seen }, since };
    const answer = await stories(path, place === CONTEXT ? "PATCH" : "PUT", body).catch((error) => {
      if (error.status !== 409) throw error;
      return stories(path);
    });
    return place === CONTEXT ? fromContext(answer) : fromDraft(answer);
  }

  /** Send what waits after a pause, or while the writer types on, after a longer one. */
  #sendSoon(pause) {
    this.since ??= Date.now();
    clearTimeout(this.timer);
    const left = this.since + LONGEST_PAUSE - Date.now();
    this.timer = setTimeout(() => {
      this.since = null;
      const places = [...this.waiting];
      this.waiting.clear();
      return this.typing.save(...places, TITLE, ...(this.isPlaceUnsent ? [PLACE] : []));
    }, Math.max(0, Math.min(pause, left)));
  }

  async #sendTyped(items, before) {
    await before?.catch(() => {});
    for (const item of items)
      if (item === TITLE) await this.#sendTitle();
      else if (item === PLACE) await this.#sendPlace();
      else if (!this.unsaid.has(item)) await this.#sendValue(item).catch(missing);
  }

  async #sendPlace() {
    this.isPlaceUnsent = false;
    this.placeChange = Infinity; // what is heard until the answer may be older
    const { current, shown, cursor, words } = this.replica.own;
    try {
      this.placeChange = (await stories(this.path, "PATCH", { place: { current, shown, cursor, words } })).change;
      this.#hearPlace(this.story);
    } catch (error) {
      this.isPlaceUnsent = true;
      if (error.status !== 404) throw error; // the story was deleted
    }
  }

  /** Name a story that isn't generated from yet by its draft. */
  async #sendTitle() {
    const { title } = this.story;
    const suggested = suggestTitle({ pieces: [{ text: this.replica.drafts.at(ROOT) ?? "" }] });
    if (this.batches.size || !suggested || suggested === title || (title && title !== this.suggested)) return;
    await this.name(suggested);
    this.suggested = suggested;
  }

  /** Send changes of these nodes that the server doesn't know, after the previous ones. */
  async #send(ids, before) {
    await before?.catch(() => {});
    for (const id of ids) {
      const wanted = this.unsent.get(id);
      if (!wanted) continue;
      const changed = differences(wanted, this.remarks.get(id));
      if (changed.length && !(await this.#patch(id, Object.fromEntries(changed)))) continue;
      this.remarks.set(id, wanted);
      if (this.unsent.get(id) === wanted) this.unsent.delete(id);
    }
    await this.#exchange([], { own: true }).catch(() => {}); // the desk reports it
  }

  /** Change the remarks of a node. Resolves to null if the story is in the trash, perhaps for a while. */
  #patch(id, fields) {
    return stories(`${this.path}/nodes/${id}`, "PATCH", fields).catch((error) => {
      if (error.status !== 404) throw error;
      return null;
    });
  }

  place(_tree, id) {
    return { story: this.story.id, ...(id === ROOT ? { prompt: "" } : { node: Number(id) }) };
  }

  async watch(listener) {
    this.listener = listener;
    this.follow({ ...listener, renamed() {}, deleted() {}, restored() {} }); // the server reports these
    const onEvent = (event, id) => {
      this.change = id ?? this.change;
      if (event.event === "node") {
        listener.changed(this.#fromServer(event.node));
        const early = [...this.unsaid.values()];
        this.unsaid.clear();
        if (early.length) this.#hear(...early);
      }
      if (event.event === "story") {
        listener.renamed((this.story = event.story));
        this.#hearPlace(event.story);
        this.#hear(fromContext(event.story));
      }
      if (event.event === "draft") this.#hear(fromDraft(event.draft));
      if (event.event === "deleted") dropCopy(this.story.id).catch(() => {});
      else if (event.event !== "text") this.#copy({ ...this.head, ...event.story, change: this.change }, event.node ? [event.node] : []);
      return event.event === "deleted";
    };
    for (;;) {
      await this.#findUnsent().catch(() => {}); // by an earlier page, or while the story was in the trash
      this.#sendSoon(0);
      if (this.unsent.size) this.sending.save(...this.unsent.keys());
      await watch(this.story.id, { after: this.change, onEvent }).catch(missing);
      listener.deleted();
      await this.#whenRestored();
      listener.restored();
    }
  }

  async #whenRestored() {
    for (let isThere = false; !isThere; ) {
      await new Promise((resolve) => {
        this.stories.restored = resolve;
        setTimeout(resolve, LOOK);
      });
      isThere = await stories(`${this.path}/nodes?since=${this.change}`).then(() => true, () => false);
    }
  }

  /** Follow the writer on another device, unless this one has gone elsewhere since. */
  #hearPlace({ place, change }) {
    const isMove = isPlace(place) && JSON.stringify(placeOfPage(place)) !== JSON.stringify(this.knownPlace);
    if (!isMove || this.isPlaceUnsent || change <= this.placeChange) return;
    this.knownPlace = placeOfPage(place);
    this.listener?.moved(place);
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
