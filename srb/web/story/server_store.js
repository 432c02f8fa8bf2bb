// @ts-check
// Stories on the server, shared with other devices. Nodes are only added; only marks of nodes and the story's
// background change.

import { search, stories, watch } from "../lib/api.js";
import { loadLocal, saveLocal } from "../lib/local_storage.js";
import { saveMessages } from "../lib/messages.js";
import { SaveQueue } from "../lib/save_queue.js";
import { Store, Stories, TRASH_MILLISECONDS } from "./browser_store.js";
import { dropCopy, keepCopy, listCopies, readCopy } from "./copies.js";
import { Steps } from "./edits.js";
import { endReason } from "./generation.js";
import { readBackground } from "./lorebook.js";
import { merge, same } from "./merging.js";
import { markMatch, searchTree } from "./search.js";
import { difference } from "./text_merge.js";
import { suggestTitle } from "./titles.js";
import { ROOT, textOf, Tree } from "./tree.js";

const PART = 1000; // results per request

const REST = 400; // milliseconds to collect changes of the background

const PAUSE = 1000; // milliseconds without a key after which drafts are sent
const LONGEST_PAUSE = 10_000; // while somebody types on

const LOOK = 5000; // milliseconds between two looks whether a story was restored

const REMOVED = "srb-removed"; // when this browser has put stories of the server into the trash, by id

const CONTEXT = Symbol("memory, note and lore");
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
    /** @type {StoreListener | null} */
    this.listener = null;
    this.remarks = new Map(); // by node, as the server has them
    this.unsent = new Map(); // by node, not yet on the server; stored with the page
    this.drafts = new Map(); // {text, change} by place, as the server has them
    this.texts = new Map(); // by place, as this page has them
    this.sentTexts = new Map(); // the last text of each draft that was sent
    this.unsentDrafts = new Map(); // the change that each is based on, by place; stored with the page
    /** @type {[place: string, text: string, marks?: string][]} */
    this.splits = []; // drafts that differ from unsent ones, until `watch`
    this.typing = new SaveQueue((items) => (this.typed = this.#sendTyped(items, this.typed)), saveMessages("What you typed last", "on the server"));
    this.sending = new SaveQueue((ids) => (this.sent = this.#send(ids, this.sent)), saveMessages("What you changed"));
  }

  async load() {
    const [{ nodes, change, context, place, drafts: known }, { page, drafts }] = await Promise.all([this.#read(), this.all.page(this.story.id)]);
    this.change = this.contextChange = change;
    this.page = page;
    this.unsent = new Map(Object.entries(page.unsent ?? {}));
    this.#loadContext(context);
    if (isPlace(place) && !page.isPlaceUnsent) Object.assign(page, place);
    await this.#merge(known ?? [], drafts);
    return { nodes: nodes.map((each) => this.#fromServer(each)), page: this.page, drafts: [...this.texts].filter(([, text]) => text !== undefined) };
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
      return copy;
    }
  }

  #copy(story, nodes) {
    this.head = story;
    keepCopy(story, nodes).catch(() => {}); // which nobody needs while the server is there
  }

  /** Merge the server's memory, note and lore with this browser's, which may have been changed without a server. */
  #loadContext(context) {
    const { beside, context: { known = undefined, sent = undefined } = {}, unsent = {} } = this.page;
    const theirs = readBackground(context ?? {});
    const mine = beside ? readBackground(beside) : theirs;
    const isOld = !known && !unsent.root && context; // an older page has sent all that it stored
    const base = isOld ? mine : !known || same(theirs, sent) ? theirs : known;
    this.unsent.delete(ROOT);
    this.context = theirs;
    this.page.beside = merge(base, mine, theirs);
  }

  /** Compare the server's drafts with those in this browser, which may have been typed without a server. */
  async #merge(known, drafts) {
    const { page } = this;
    this.knownPlace = placeOfPage(page);
    this.isPlaceUnsent = page.isPlaceUnsent ?? false;
    this.texts = new Map(drafts);
    this.unsentDrafts = new Map(Object.entries(page.unsentDrafts ?? {}));
    /** @type {[place: string, text: string | undefined][]} */
    const taken = [];
    const marks = { ...page.marks };
    const steps = new Steps(page.steps);
    for (const draft of known) {
      const [place, text] = [placeOf(draft), draft.text ?? undefined];
      const since = this.unsentDrafts.get(place);
      this.drafts.set(place, { text, change: draft.change });
      if (since !== undefined && text !== this.texts.get(place)) {
        this.unsentDrafts.set(place, draft.change);
        if (draft.change > since && text !== undefined && !this.texts.get(place)?.includes(text)) this.splits.push([place, text, draft.metadata?.marks]);
        continue;
      }
      this.unsentDrafts.delete(place);
      const before = this.texts.get(place);
      if (before !== text) {
        taken.push([place, text]);
        steps.follow(place, before === undefined || text === undefined ? null : difference(before, text));
      }
      this.texts.set(place, text);
      marks[place] = draft.metadata?.marks;
    }
    for (const [place] of drafts) if (!this.drafts.has(place)) this.unsentDrafts.set(place, 0);
    this.page = { ...page, marks, steps: steps.all };
    this.suggested = suggestTitle({ pieces: [{ text: this.drafts.get(ROOT)?.text ?? "" }] });
    await this.#keepPage(taken);
  }

  async add(fields) {
    const parent = fields.parent === ROOT ? null : Number(fields.parent);
    const added = await stories(`${this.path}/nodes`, "POST", { ...toServer(fields), parent });
    const isDraftsTitle = !this.batches.size && this.story.title === this.suggested; // and not yet generated from
    if (!this.story.title || isDraftsTitle) await this.#name(suggestTitle(fields));
    return { ...this.#fromServer(added), ...fields };
  }

  async save(nodes, page, drafts, knows) {
    this.page = page;
    const isMove = JSON.stringify(placeOfPage(page)) !== JSON.stringify(this.knownPlace);
    const isTyped = drafts.filter(([place, text]) => this.#note(place, text)).length;
    this.isPlaceUnsent ||= isMove || isTyped > 0;
    if (isMove) this.knownPlace = placeOfPage(page);
    if (this.isPlaceUnsent) this.#sendSoon(isMove || document.hidden ? 0 : PAUSE);
    const isNews = (id, said) => this.unsent.has(id) || differences(said, this.remarks.get(id)).length;
    const changed = nodes.filter((node) => this.remarks.has(node.id) && isNews(node.id, remarks(node)));
    for (const node of changed) this.unsent.set(node.id, remarks(node));
    this.#sendContextSoon(REST);
    const sent = changed.length ? this.sending.save(...changed.map((node) => node.id)) : null;
    const replaced = await this.#keepPage(drafts, knows).catch((error) => {
      throw Object.assign(error, { isCopy: true }); // the server has it, or will have it
    });
    await sent;
    return replaced;
  }

  /** This page's memory, note and lore. */
  get #background() {
    return readBackground(this.page.beside ?? {});
  }

  #sendContextSoon(pause) {
    if (same(this.#background, this.context)) return;
    this.resting ??= setTimeout(() => {
      this.resting = null;
      return this.sending.save(CONTEXT);
    }, pause);
  }

  async #sendContext() {
    const wanted = this.#background;
    if (same(wanted, this.context)) return;
    this.sentContext = wanted; // the server may report it before it answers
    this.#keepPage().catch(() => {}); // another page of this browser knows it then
    try {
      const { change } = await stories(this.path, "PATCH", { context: wanted, since: this.contextChange });
      this.#hearContext({ context: wanted, change });
    } catch (error) {
      if (error.status === 404) return; // the story is in the trash, perhaps for a while
      if (error.status !== 409) throw error;
      this.#hearContext(await stories(this.path));
      await this.#sendContext();
    }
  }

  /** Merge memory, note and lore of the server with this page's. */
  #hearContext({ context, change }) {
    if (change <= this.contextChange) return;
    this.contextChange = change;
    const theirs = readBackground(context ?? {});
    const base = same(theirs, this.sentContext) ? theirs : this.context;
    this.context = theirs;
    const merged = merge(base, this.#background, theirs);
    if (!same(merged, this.#background)) {
      this.page = { ...this.page, beside: merged };
      this.listener?.background(merged);
    }
    this.#keepPage().catch(() => {});
    this.#sendContextSoon(REST);
  }

  #keepPage(drafts, knows) {
    const context = { known: this.context, sent: this.sentContext };
    const unsent = { unsent: Object.fromEntries(this.unsent), unsentDrafts: Object.fromEntries(this.unsentDrafts), isPlaceUnsent: this.isPlaceUnsent, context };
    return this.all.savePage(this.story.id, { ...this.page, ...unsent }, drafts, knows);
  }

  /** Note a draft of this page. Returns whether it is to be sent. */
  #note(place, text) {
    const known = this.drafts.get(place);
    this.texts.set(place, text);
    if (text === known?.text) return this.unsentDrafts.delete(place) && false;
    if (!this.unsentDrafts.has(place)) this.unsentDrafts.set(place, known?.change ?? 0);
    return true;
  }

  /** Send drafts and the place after a pause, or while the writer types on, after a longer one. */
  #sendSoon(pause) {
    this.waiting ??= Date.now();
    clearTimeout(this.timer);
    const left = this.waiting + LONGEST_PAUSE - Date.now();
    this.timer = setTimeout(() => {
      this.waiting = null;
      return this.typing.save(...this.unsentDrafts.keys(), TITLE, ...(this.isPlaceUnsent ? [PLACE] : []));
    }, Math.max(0, Math.min(pause, left)));
  }

  async #sendTyped(items, before) {
    await before?.catch(() => {});
    for (const item of items)
      if (item === TITLE) await this.#sendTitle();
      else if (item === PLACE) await this.#sendPlace();
      else await this.#sendDraft(item);
    await this.#keepPage().catch(() => {}); // the desk reports it
  }

  async #sendPlace() {
    this.isPlaceUnsent = false;
    const { current, shown, cursor, words } = this.page;
    await stories(this.path, "PATCH", { place: { current, shown, cursor, words } }).catch((error) => {
      this.isPlaceUnsent = true;
      if (error.status !== 404) throw error; // the story was deleted
    });
  }

  /** Name a story that isn't generated from yet by its draft. */
  async #sendTitle() {
    const { title } = this.story;
    const suggested = suggestTitle({ pieces: [{ text: this.texts.get(ROOT) ?? "" }] });
    if (this.batches.size || !suggested || suggested === title || (title && title !== this.suggested)) return;
    await this.#name(suggested);
    this.suggested = suggested;
  }

  /** Name the story, unless somebody else has named it meanwhile. */
  async #name(title) {
    try {
      this.story = await this.all.rename(this.story, title);
    } catch (error) {
      if (error.status !== 409) throw error;
      const { title: other, change } = await stories(this.path);
      this.story = { ...this.story, title: other, change };
    }
  }

  async #sendDraft(place) {
    const since = this.unsentDrafts.get(place);
    if (since === undefined) return;
    const [text, marks] = [this.texts.get(place), this.page.marks?.[place]];
    const path = `${this.path}/drafts/${numberOf(place)}`;
    this.sentTexts.set(place, text); // the server may report it before it answers
    try {
      const { change } = await stories(path, "PUT", { text: text ?? null, metadata: marks ? { marks } : null, since });
      this.#isSent(place, text, change);
    } catch (error) {
      if (error.status === 409) return this.#hearDraft(await stories(path));
      if (error.status !== 404) throw error; // the story was deleted
    }
  }

  /** The server has this text of a draft. */
  #isSent(place, text, change) {
    if (change > (this.drafts.get(place)?.change ?? 0)) this.drafts.set(place, { text, change });
    if (this.texts.get(place) === text) this.unsentDrafts.delete(place);
    else this.unsentDrafts.set(place, change);
  }

  /** Compare a draft of the server with this page's. */
  #hearDraft(draft) {
    const [place, text] = [placeOf(draft), draft.text ?? undefined];
    const { change } = draft;
    const marks = draft.metadata?.marks;
    if (change <= (this.drafts.get(place)?.change ?? 0)) return;
    this.drafts.set(place, { text, change });
    if (!this.unsentDrafts.has(place)) {
      this.texts.set(place, text);
      this.page = { ...this.page, marks: { ...this.page.marks, [place]: marks } };
      this.#keepPage([[place, text]]).catch(() => {});
      this.listener?.saved([[place, text]], { marks: { [place]: marks } });
    } else if (text === undefined || this.texts.get(place)?.includes(text) || text === this.sentTexts.get(place) || this.listener?.knows(place, text)) {
      this.#isSent(place, text, change);
      if (this.unsentDrafts.has(place)) this.#sendSoon(PAUSE);
    } else {
      this.unsentDrafts.set(place, change);
      this.listener?.split(place, text, marks);
    }
  }

  /** Send changes of these nodes that the server doesn't know, after the previous ones. */
  async #send(ids, before) {
    await before?.catch(() => {});
    for (const id of ids) {
      if (id === CONTEXT) await this.#sendContext();
      const wanted = this.unsent.get(id);
      if (!wanted) continue;
      const changed = differences(wanted, this.remarks.get(id));
      if (changed.length && !(await this.#patch(id, Object.fromEntries(changed)))) continue;
      this.remarks.set(id, wanted);
      if (this.unsent.get(id) === wanted) this.unsent.delete(id);
    }
    await this.#keepPage().catch(() => {}); // the desk reports it
  }

  /** Change the remarks of a node. Resolves to null if the story is in the trash, perhaps for a while. */
  #patch(id, fields) {
    return stories(`${this.path}/nodes/${id}`, "PATCH", fields).catch((error) => {
      if (error.status !== 404) throw error;
      return null;
    });
  }

  place(tree, id) {
    if (id === ROOT) return { story: this.story.id, prompt: "" };
    const isOther = tree.path(id).some(({ asked }) => asked); // the server's text there is a chat template's
    return { story: this.story.id, node: Number(id), ...(isOther && { prompt: tree.prompt(id) }) };
  }

  async watch(listener) {
    this.listener = listener;
    const saved = (drafts, page, base) => {
      for (const [place, text] of drafts) this.#note(place, text);
      if (this.unsentDrafts.size) this.#sendSoon(2 * PAUSE); // by then the other tab has sent them, unless it was closed
      listener.saved(drafts, page, base);
      const [before, theirs] = [base, page].map((each) => readBackground(each?.beside ?? {}));
      this.page = { ...this.page, beside: merge(before, this.#background, theirs) }; // as the listener does
      this.#sendContextSoon(2 * PAUSE);
    };
    this.all.browser.follow(this.story.id, { ...listener, saved, renamed() {}, deleted() {}, restored() {} }); // the server reports these
    for (const each of this.splits) listener.split(...each);
    const onEvent = (event, id) => {
      this.change = id ?? this.change;
      if (event.event === "node") listener.changed(this.#fromServer(event.node));
      if (event.event === "story") this.#hear(event.story, listener);
      if (event.event === "draft") this.#hearDraft(event.draft);
      if (event.event === "deleted") dropCopy(this.story.id).catch(() => {});
      else if (event.event !== "text") this.#copy({ ...this.head, ...event.story, change: this.change }, event.node ? [event.node] : []);
      return event.event === "deleted";
    };
    const missing = (error) => {
      if (error.status !== 404) throw error;
    };
    for (;;) {
      this.#sendUnsent();
      await watch(this.story.id, { after: this.change, onEvent }).catch(missing);
      listener.deleted();
      await this.#whenRestored();
      listener.restored();
    }
  }

  /** Send what was left by an earlier page, or while the story was in the trash. */
  #sendUnsent() {
    if (this.unsentDrafts.size || this.page.isPlaceUnsent) this.#sendSoon(0);
    if (this.unsent.size) this.sending.save(...this.unsent.keys());
    this.#sendContextSoon(0);
  }

  async #whenRestored() {
    for (let isThere = false; !isThere; ) {
      await new Promise((resolve) => {
        this.all.restored = resolve;
        setTimeout(resolve, LOOK);
      });
      isThere = await stories(`${this.path}/nodes?since=${this.change}`).then(() => true, () => false);
    }
  }

  #hear(story, listener) {
    listener.renamed((this.story = story));
    const isMove = isPlace(story.place) && JSON.stringify(placeOfPage(story.place)) !== JSON.stringify(this.knownPlace);
    if (isMove && !this.isPlaceUnsent) {
      this.knownPlace = placeOfPage(story.place);
      listener.moved(story.place);
    }
    this.#hearContext(story);
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
