// @ts-check
// Stories in the browser, or nowhere. server_store.js has those on the server.

import { compositionEnd } from "../lib/dom.js";
import { loadLocal, localNames, saveLocal } from "../lib/local_storage.js";
import { ChangeSet } from "../vendor/codemirror.js";
import { allOf, finished } from "./copies.js";
import { changesSince, Drafts, isSameDraft } from "./drafts.js";
import { same } from "./merging.js";
import { searchTree } from "./search.js";
import { suggestTitle } from "./titles.js";
import { applied, composed, partsOf } from "./text_merge.js";
import { newId, ROOT, Tree } from "./tree.js";
import { repair } from "./validation.js";

/**
 * @typedef {import("./tree.js").StoryNode} StoryNode
 * @typedef {import("./drafts.js").Draft} Draft
 * @typedef {{ id: string, title: string, changed?: number, words?: number, change?: number }} StoryInfo
 *
 * @typedef {object} Replica what a page has of a story. `meet` merges what others have made of it.
 * @property {import("./tree.js").Tree} tree
 * @property {import("./drafts.js").Drafts} drafts
 * @property {Record<string, any>} own what only this page knows: where its writer is, and undo steps
 * @property {Record<string, any>} shared settings, memory, note, lore and all else that isn't in the text
 * @property {(base: Record<string, any>, theirs: Record<string, any>) => void} meet
 * @property {(place: string, base: Draft | undefined, theirs: Draft | undefined, unsent?: any[]) => void} meetDraft
 *
 * @typedef {object} StoreListener
 * @property {(node: StoryNode) => void} changed
 * @property {(story: StoryInfo) => void} renamed
 * @property {(isErased?: boolean) => void} deleted put into the trash, or erased
 * @property {() => void} restored from the trash
 * @property {(place: { current: string, shown: string[] }) => void} moved where the writer is on another device
 */

/** A story as this browser has it. Stores of other places extend it. */
export class Store {
  /** Whether other devices see the story. Such a store adds the alternatives of a request itself, and nodes only get children. */
  isShared = false;
  /** Where the writer is, as other devices know it. @type {any} */
  knownPlace = null;
  /** @type {StoreListener | null} */
  listener = null;
  /** That of the page. @type {Replica} */
  replica = /** @type {any} */ (null);
  /** @type {any} */
  story;
  #bases = new Map(); // the values that this tab has stored or read, by key
  #storing = new Map(); // those that are being stored
  #turn = Promise.resolve();
  #last = ""; // what was stored last of this page's own state
  #tab = tabId();
  #unstored = new Map(); // nodes, by id
  #notes = 0; // of what isn't stored yet; a page knows how many of each tab it has
  #taken = {}; // how many notes of each closed tab this page has

  /**
   * @param {StoryInfo} story
   * @param {any} stories the collection that it is in
   * @param {Stories} local those of this browser
   */
  constructor(story = { id: "", title: "" }, stories = new Stories(), local = stories) {
    this.story = story;
    this.stories = stories;
    this.local = local;
  }

  /**
   * Read the nodes, the drafts, and the rest of the page's state.
   * @returns {Promise<{ nodes: StoryNode[], drafts: [place: string, draft: Draft][], page: Record<string, any> }>}
   */
  async load() {
    const [stored, said] = await Promise.all([this.local.nodes(this.story), this.loadPage()]);
    const noted = this.#noted().flatMap(({ nodes = [], isStored }) => (isStored ? [] : nodes));
    return { nodes: [...new Map([...stored, ...noted].map((node) => [node.id, node])).values()], ...said };
  }

  /** Read what this browser has of the story, but for nodes. */
  async loadPage() {
    const { id } = this.story;
    const { page, drafts } = await this.local.page(id);
    this.#know([[id, page], ...drafts.map(([place, draft]) => [[id, place], draft])]);
    const own = this.#noted().find(({ isOwn }) => isOwn);
    this.#notes = Math.max(page.seen?.[this.#tab] ?? 0, own?.count ?? 0);
    return { page: { ...page, ...(!own?.isStored && own?.own) }, drafts };
  }

  /** Take note of values that this tab has stored or read. */
  #know(values) {
    for (const [key, value] of values) this.#bases.set(String(key), value);
  }

  /** What a draft was before what has been typed since. */
  #base(place) {
    const key = String([this.story.id, place]);
    return (this.#storing.has(key) ? this.#storing : this.#bases).get(key); // it may be stored that there is none
  }

  /** This page's own state. */
  get own() {
    return this.replica.own;
  }

  /** Keep a page, which has what `load` returned, and others the same. Resolves when it has what is new on the server. */
  async begin(replica) {
    this.replica = replica;
    await this.takeLeft({ isReloaded: true });
  }

  /** Give the page what closed tabs have noted and not stored, and what this one has before it was reloaded. */
  async takeLeft({ isReloaded = false } = {}) {
    const { replica, listener } = this;
    const notes = this.#noted().filter(({ isOwn }) => isReloaded || !isOwn);
    const left = notes.filter(({ isOwn, time }) => isOwn || time < Date.now() - ALIVE);
    if (left.length < notes.length) setTimeout(() => this.takeLeft(), ALIVE);
    if (!left.length) return;
    const news = left.filter(({ isStored }) => !isStored);
    const nodes = news.flatMap((note) => note.nodes ?? []);
    for (const node of nodes) listener?.changed(node); // before there is one, `load` has given them
    for (const note of news.sort((a, b) => b.isOwn - a.isOwn)) this.#take(note);
    const places = left.flatMap(({ drafts }) => drafts.map(([place]) => place));
    const forget = () => left.forEach(({ name, isOwn }) => isOwn || saveLocal(name, undefined));
    const known = this.#ownNodes(nodes.map((node) => replica.tree.nodes.get(node.id) ?? node));
    await this.exchange({ places, own: true, nodes: known }).then(forget, () => {}); // the next save reports it
  }

  /** Name the story, unless somebody else has named it meanwhile. */
  async name(title) {
    try {
      this.story = await this.stories.rename(this.story, title);
    } catch (error) {
      if (error.status !== 409) throw error;
      [this.story = this.story] = (await this.stories.list()).filter(({ id }) => id === this.story.id);
    }
    this.listener?.renamed(this.story);
  }

  /**
   * Add a node of these fields. Returns it, with an id if the store assigns ids.
   * @returns {Promise<Partial<StoryNode>>}
   */
  async add(fields) {
    if (!this.story.title) await this.name(suggestTitle(fields));
    return fields;
  }

  /**
   * Store nodes, the drafts of places, and the page's state, all at once. What others have changed is merged. A shared
   * store also learns whether the writer has changed one of these drafts.
   */
  async save(nodes, places, _isTyped) {
    await this.exchange({ places, own: true, nodes: this.#ownNodes(nodes) });
  }

  /** Note what isn't stored yet, because the page may be closing. */
  leave(nodes) {
    this.note({ nodes: this.#ownNodes(nodes), isLast: true });
  }

  #ownNodes(nodes) {
    return nodes.map((node) => ({ ...node, story: this.story.id }));
  }

  /** Return the fields of a request that continues a node. @returns {Record<string, any>} */
  place(tree, id) {
    return { prompt: tree.prompt(id) };
  }

  /** Report changes by others until the story is deleted. */
  async watch(listener) {
    this.listener = listener;
    this.follow({ ...listener, renamed: (story) => listener.renamed((this.story = { ...this.story, ...story })) });
    await this.save([], []); // the list shows its words
  }

  /** Exchange with other tabs when they store something. */
  follow(listener) {
    const { local, story: { id } } = this;
    const places = new Set();
    let isAsked = false;
    /** @type {Promise<void> | null} */
    let reading = null;
    const read = async () => {
      while (isAsked) {
        isAsked = false;
        const asked = [...places];
        places.clear();
        await this.exchange({ places: asked });
      }
    };
    const readSoon = (news) => {
      for (const node of news.nodes) listener.changed(node);
      for (const each of news.places) places.add(each);
      isAsked = true;
      reading ??= read().catch(() => {}).finally(() => (reading = null));
    };
    local.hear(id, (news) => {
      if (news.isErased || news.isRemoved) listener.deleted(news.isErased);
      else if (news.isRestored) listener.restored();
      else if (news.title !== undefined) listener.renamed({ id, title: news.title });
      else readSoon(news);
    });
    // A page that was frozen may have missed messages.
    addEventListener("focus", async () => {
      const { drafts } = await local.page(id);
      await this.takeLeft();
      readSoon({ places: drafts.map(([place]) => place), nodes: [] });
    });
  }

  /**
   * Exchange the page and some drafts with what other tabs have stored of them: then both are the same.
   * Resolves to the places whose drafts were stored; to null if nothing was.
   * @param {object} what
   * @param {string[]} [what.places]
   * @param {StoryNode[]} [what.nodes] to store, too
   * @param {boolean} [what.own] whether to store this page's own state, too
   * @param {any[]} [what.keys] of other values, for `what.change`, which returns those to put
   * @param {(values: any[]) => [key: any, value: any][]} [what.change]
   * @returns {Promise<string[] | null>}
   */
  async exchange(/** @type {any} */ what) {
    const { local, replica, story: { id } } = this;
    if (local.removed.has(id)) return null;
    if (what.own) this.note(what);
    const turn = this.#turn.then(compositionEnd).then(() => this.#exchange(what)); // the previous one is stored then
    this.#turn = turn.then(() => {}, () => {});
    const places = await turn;
    local.stored({ id, places, nodes: what.nodes ?? [] }, replica.own.words);
    return places;
  }

  async #exchange({ places: asked = [], nodes = [], own, keys = [], change = (_values) => [] }) {
    const { local, replica, story: { id } } = this;
    const { drafts } = replica;
    const places = [...new Set(asked)];
    /** @type {[key: any, value: any][]} */
    let puts = [];
    let state = this.#last;
    const merge = (/** @type {any[]} */ [page = {}, ...values]) => {
      replica.meet(this.#bases.get(id) ?? {}, page);
      places.forEach((place, k) => replica.meetDraft(place, this.#base(place), values[k]));
      this.#know([[id, page], ...places.map((place, k) => [[id, place], values[k]])]);
      const others = change(values.slice(places.length));
      const isStored = (place, k) => isSameDraft(drafts.get(place), values[k]) && !drafts.unsent.has(place);
      puts = places.flatMap((place, k) => (isStored(place, k) ? [] : [[[id, place], drafts.store(place, values[k])]]));
      const { shared } = replica;
      const now = own && this.own;
      if (now) state = stateOf(now);
      const isNew = state !== this.#last || puts.length || Object.keys(shared).some((name) => !same(shared[name], page[name]));
      const seen = { ...Object.fromEntries(Object.entries(page.seen ?? {}).slice(1 - MOST_TABS)), ...this.#taken, [this.#tab]: this.#notes };
      if (isNew || (own && nodes.length)) puts.push([id, { ...(now || page), ...shared, seen }]);
      this.#storing = new Map(puts.map(([key, value]) => [String(key), value]));
      return [...puts, ...others];
    };
    try {
      await local.transact([id, ...places.map((place) => [id, place]), ...keys], merge, nodes);
      this.#know(puts);
      this.#last = state;
      drafts.stored();
    } catch (error) {
      drafts.unstore();
      throw error;
    } finally {
      this.#storing.clear();
    }
    for (const node of nodes) if (this.#unstored.get(node.id) === node) this.#unstored.delete(node.id);
    if (own) this.note();
    return puts.length || nodes.length ? puts.flatMap(([key]) => (key === id ? [] : [key[1]])) : null;
  }

  /**
   * Note what isn't stored yet, at once: the page may be closed before it is. `begin` gives that to another page. Undo
   * steps, which are long, are noted, too, if it is the last note, and if there is room.
   */
  note({ nodes = [], isLast = document.hidden } = {}) {
    for (const node of nodes) this.#unstored.set(node.id, node);
    const { own, replica: { drafts, shared }, story: { id } } = this;
    // A value that is being stored may be dropped with the page, so what is noted fits both it and what is stored.
    const key = (place) => String([id, place]);
    const isNew = (place) => this.#storing.has(key(place)) || !isSameDraft(this.#bases.get(key(place)), drafts.get(place));
    const places = drafts.places.filter(isNew);
    const pages = [this.#bases.get(id) ?? {}, this.#storing.get(id)].filter(Boolean);
    const names = Object.keys(shared).filter((name) => pages.some((page) => !same(shared[name], page[name])));
    const name = `${LEFT} ${id} ${this.#tab}`;
    if (!places.length && !names.length && !this.#unstored.size && stateOf(own) === this.#last) return void saveLocal(name, undefined);
    const changed = (place) => {
      const draft = drafts.get(place) ?? {};
      if (draft.text === undefined) return [place, draft];
      const base = this.#base(place) ?? {};
      const changes = drafts.since(place, base, drafts.typed(place)).toJSON();
      return [place, { ...draft, text: "" }, [...(this.#storing.get(key(place))?.log.slice(-1) ?? []), [base.version ?? "", changes]]];
    };
    const of = (values) => Object.fromEntries(names.map((each) => [each, values[each]]));
    const noted = { count: ++this.#notes, time: Date.now(), nodes: [...this.#unstored.values()], drafts: places.map(changed), bases: pages.map(of), shared: of(shared), taken: this.#taken, own: { ...own, steps: undefined } };
    const tries = [...(isLast ? [{ ...noted, own }] : []), noted, { ...noted, nodes: [] }]; // there may be no room
    tries.some((each) => !saveLocal(name, each));
  }

  /** Return what tabs have noted, the last one last. A note of this one is from before a reload. */
  #noted() {
    const { id } = this.story;
    const { seen = {} } = this.#bases.get(id) ?? {};
    const all = localNames(`${LEFT} ${id} `).map((name) => ({ name, tab: name.split(" ").at(-1), ...loadLocal(name) }));
    const taken = [seen, this.#taken, ...all.map((note) => note.taken ?? {})];
    const isStored = ({ tab, count }) => taken.some((each) => count <= each[tab]); // or what has taken it is noted, too
    const notes = all.map((note) => ({ ...note, isOwn: note.tab === this.#tab, isStored: isStored(note) }));
    return notes.sort((a, b) => a.time - b.time);
  }

  /** Merge what a page has noted, and how it differs from what was stored then. */
  #take({ bases, shared, drafts, tab, count, taken, isOwn }) {
    const { replica } = this;
    this.#taken = { ...this.#taken, ...taken, [tab]: count };
    const page = this.#bases.get(this.story.id) ?? {};
    const base = bases.find((each) => Object.keys(shared).every((name) => same(each[name], page[name]))) ?? bases[0];
    replica.meet(base, shared);
    for (const [place, draft, log] of drafts) {
      const noted = log ? this.#repeated(place, draft, log) : draft;
      const known = /** @type {const} */ ([place, this.#base(place), noted, replica.drafts.typed(place)]);
      if (isOwn) replica.drafts.meet(...known); // the undo steps are of what it has typed
      else replica.meetDraft(...known);
      replica.drafts.unsent.delete(place); // the server wasn't asked
    }
  }

  /** Return a noted draft after what has been stored since. */
  #repeated(place, draft, log) {
    const stored = this.#base(place) ?? {};
    const { text } = this.replica.drafts.shown(place, stored);
    const isKnown = ([version]) => version === (stored.version ?? "") || stored.log?.some(([each]) => each === version);
    const from = log.findLastIndex(isKnown); // the last one, if none is
    const changes = composed(log.slice(from).map(([, each]) => each));
    const made = repeated(text, changes, composed(changesSince({ version: log.at(from)[0] }, stored)));
    return { ...draft, text: applied(text, made), log: [[stored.version ?? "", made]] };
  }

  /** Return the changes of a draft that the server doesn't have; null stands for unknown ones. */
  unsentOf(place) {
    return [this.#base(place)?.unsent, ...this.replica.drafts.typed(place)];
  }
}

const LEFT = "srb-left"; // by a page that was closed
const ALIVE = 10_000; // milliseconds after which a page would have stored it
const MOST_TABS = 20;

/** Return changes of a text as they are after others. If these are unknown, only what they add. */
function repeated(text, changes, others) {
  if (others?.length === changes.length && others.newLength === text.length) return changes.map(others);
  if (changes.length === text.length) return changes;
  return ChangeSet.of(partsOf(changes).map(({ from, insert }) => ({ from: Math.min(from, text.length), insert })), text.length, "\n");
}

/** The same for this tab after a reload. */
function tabId() {
  const known = sessionStorage.getItem("srb-tab") ?? newId();
  sessionStorage.setItem("srb-tab", known);
  return known;
}

/** A page's own state, short enough to compare. */
const stateOf = ({ steps: { done = [], undone = [] } = {}, ...own }) =>
  JSON.stringify([own, ...[done, undone].map((steps) => [steps.length, steps.at(-1)?.changes])]);

/** The stories of a browser that stores nothing: one empty story. Other collections of stories extend it. */
export class Stories {
  #kept = new Map();
  removed = new Set(); // ids of deleted stories

  /** List the stories, the last changed first. @returns {Promise<StoryInfo[]>} */
  async list() {
    return [{ id: "", title: "" }];
  }

  /**
   * Make a story of nodes, which get new ids.
   * @param {string} [_title]
   * @param {StoryNode[]} [_nodes]
   * @param {any} [_background] memory, author's note and lorebook
   * @returns {Promise<{ story: StoryInfo, ids: Map<string, string> }>} `ids` maps old ids to new ones
   */
  async make(_title, _nodes, _background) {
    throw new Error("This browser stores no stories. Reload the page to start another story.");
  }

  /** @throws {Error} with the status 409 if the story doesn't have its title any more */
  async rename(story, title) {
    return { ...story, title };
  }

  /** Put a story into the trash, where it stays for 30 days. */
  async remove(_story) {}

  /** List the stories in the trash, the last deleted first. @returns {Promise<StoryInfo[]>} */
  async trash() {
    return [];
  }

  /** Take a story out of the trash. */
  async restore(_story) {}

  /** Delete a story for good. */
  async erase(_story) {}

  store(story) {
    return new Store(story, this);
  }

  /**
   * Search all stories except the open one, part by part. Each result is one of `searchTree`, with its `story`.
   * `progress` says what has been searched so far.
   * @param {string} _query
   * @param {StoryInfo} _open
   * @returns {AsyncGenerator<{ found: any[], progress: string }>}
   */
  async *find(_query, _open) {}

  /** What the search leaves out, in words. */
  unsearched = "";

  /** Read the nodes of a story. @returns {Promise<StoryNode[]>} */
  async nodes(_story) {
    return [];
  }

  /**
   * Read what this browser has of a story, but for nodes: the current place, settings, drafts.
   * @returns {Promise<{ page: Record<string, any>, drafts: [place: string, draft: Draft][] }>}
   */
  async page(_id) {
    return { page: {}, drafts: [] };
  }

  /** Store the page of a story that isn't open. */
  async keep(id, page, drafts) {
    await this.transact([], () => [[id, page], ...drafts.map(([place, draft]) => /** @type {[any, any]} */ ([[id, place], draft]))]);
  }

  /** Read values, and put those that `change` returns, and nodes, in one transaction. */
  async transact(keys, change, _nodes) {
    for (const [key, value] of change(keys.map((key) => this.#kept.get(String(key))))) this.#kept.set(String(key), value);
  }

  /** Tell other tabs, and the list, what this tab has stored of a story. */
  stored(_news, _words) {}

  /** Hear what other tabs do with a story. */
  hear(_id, _listener) {}

  /** Whether tabs have noted something of a story that may not be stored. */
  hasNotes(id) {
    return localNames(`${LEFT} ${id} `).length > 0;
  }

  /** Move what closed tabs have noted of a story to another one, whose page takes it. `ids` are of nodes, old to new. */
  moveNotes(from, to, ids) {
    for (const name of localNames(`${LEFT} ${from} `)) {
      const { drafts, nodes: _, ...note } = loadLocal(name); // `load` has given the nodes
      const moved = drafts.map(([place, ...noted]) => [ids.get(place) ?? ROOT, ...noted]);
      saveLocal(name.replace(from, to), { ...note, own: undefined, time: 0, drafts: moved });
      saveLocal(name, undefined);
    }
  }
}

export const TRASH_MILLISECONDS = 30 * 24 * 3600 * 1000;

const STORES = ["stories", "nodes", "page"];

const isFull = (error) => error?.name === "QuotaExceededError";

/** Stories in the browser's IndexedDB, with a record per node and draft, so that only changes are written. */
export class BrowserStories extends Stories {
  /** Open the database. Rejects if the browser stores nothing, as in some private windows. */
  static async open() {
    const opening = indexedDB.open("srb", 2);
    opening.onupgradeneeded = () => {
      opening.result.createObjectStore("stories", { keyPath: "id" });
      opening.result.createObjectStore("nodes", { keyPath: "id" }).createIndex("story", "story");
      opening.result.createObjectStore("page");
    };
    const opened = new BrowserStories(await finished(opening));
    for (const story of await opened.#all()) if (story.deleted < Date.now() - TRASH_MILLISECONDS) await opened.erase(story);
    return opened;
  }

  constructor(database) {
    super();
    this.database = database;
    this.words = 0; // of the open story, as the list has them
    this.tabs = new BroadcastChannel("srb-stories"); // says what this tab has saved
    this.early = []; // messages of other tabs before `follow`
    this.tabs.onmessage = (message) => this.early.push(message);
  }

  #all() {
    return finished(this.database.transaction("stories").objectStore("stories").getAll());
  }

  async list() {
    const all = await this.#all();
    return all.filter(({ deleted }) => !deleted).sort((a, b) => b.changed - a.changed);
  }

  async trash() {
    const all = await this.#all();
    return all.filter(({ deleted }) => deleted).sort((a, b) => b.deleted - a.deleted);
  }

  async remove({ id }) {
    await this.#update(id, () => ({ deleted: Date.now() }));
    this.tabs.postMessage({ id, isRemoved: true });
  }

  async restore({ id }) {
    await this.#update(id, () => ({ deleted: undefined }));
    const news = { id, isRestored: true };
    this.tabs.postMessage(news);
    this.tabs.onmessage?.(new MessageEvent("message", { data: news })); // this tab may show it
  }

  /** Change the record of a story, which another tab may have changed. Does nothing without changes. */
  async #update(id, change) {
    let now;
    await this.write(async ({ stories }) => {
      const known = await finished(stories.get(id));
      const changes = known && change(known);
      now = { ...known, ...changes };
      if (changes) stories.put(now);
    });
    return now;
  }

  async make(title = "", nodes = []) {
    const story = { id: newId(), title, changed: Date.now() };
    const ids = new Map([[ROOT, ROOT]]);
    for (const node of nodes) ids.set(node.id, newId());
    await this.write(({ stories, nodes: nodeStore }) => {
      stories.put(story);
      for (const node of nodes) nodeStore.put({ ...node, id: ids.get(node.id), parent: ids.get(node.parent), story: story.id });
    });
    return { story, ids };
  }

  async rename(story, title) {
    const renamed = await this.#update(story.id, (known) => (known.title === story.title ? { title, changed: Date.now() } : null));
    if (renamed.title !== title) throw Object.assign(new Error(`This story is named “${renamed.title}” now.`), { status: 409 });
    this.tabs.postMessage({ id: story.id, title });
    return renamed;
  }

  async erase({ id }) {
    this.removed.add(id);
    const ids = await finished(this.database.transaction("nodes").objectStore("nodes").index("story").getAllKeys(id));
    await this.write(({ stories, nodes, page }) => {
      stories.delete(id);
      page.delete(id);
      page.delete(allOf(id));
      for (const each of ids) nodes.delete(each);
    });
    this.tabs.postMessage({ id, isErased: true });
  }

  async *find(query, open) {
    const others = (await this.list()).filter(({ id }) => id !== open.id);
    for (const [k, story] of others.entries()) {
      const { nodes, drafts } = await this.store(story).load();
      repair(nodes);
      const found = searchTree(new Tree(nodes), new Drafts(drafts).all, query).map((each) => ({ ...each, story }));
      yield { found, progress: `${k + 1} of ${others.length} other stories` };
    }
  }

  nodes({ id }) {
    return finished(this.database.transaction("nodes").objectStore("nodes").index("story").getAll(id));
  }

  async page(id) {
    const kept = this.database.transaction("page").objectStore("page");
    const found = [kept.get(id), kept.getAllKeys(allOf(id)), kept.getAll(allOf(id))].map(finished);
    const [{ marks = {}, ...page } = {}, keys, values] = await Promise.all(found);
    const texts = keys.flatMap(([, place, ...others], k) => (others.length ? [] : [[place, values[k]]]));
    const drafts = texts.map(([place, draft]) => /** @type {[string, Draft]} */ ([place, typeof draft === "string" ? { text: draft, marks: marks[place] } : draft]));
    if (texts.some(([, draft]) => typeof draft === "string")) await this.keep(id, page, drafts); // of srb 0.1.0
    return { page, drafts };
  }

  async transact(keys, change, nodes = []) {
    await this.write(async (stores, commit) => {
      const values = await Promise.all(keys.map((key) => finished(stores.page.get(key))));
      for (const [key, value] of change(values))
        if (value === undefined) stores.page.delete(key);
        else stores.page.put(value, key);
      for (const node of nodes) stores.nodes.put(node);
      commit();
    });
  }

  stored(news, words) {
    const isNew = news.nodes.length || news.places?.length;
    if (isNew || words !== this.words) this.#update(news.id, () => ({ words, ...(isNew && { changed: Date.now() }) })).catch(() => {}); // only the list depends on it
    this.words = words;
    if (news.places) this.tabs.postMessage(news);
  }

  hear(id, listener) {
    this.tabs.onmessage = ({ data }) => {
      if (data.id !== id) return;
      if (data.isErased) this.removed.add(id);
      listener(data);
    };
    for (const message of this.early.splice(0)) this.tabs.onmessage(message);
  }

  /** Change the object stores in one transaction, until `commit` is called: the page may be closing. */
  write(change) {
    const transaction = this.database.transaction(STORES, "readwrite");
    const stores = Object.fromEntries(STORES.map((name) => [name, transaction.objectStore(name)]));
    return new Promise((resolve, reject) => {
      transaction.oncomplete = () => resolve(undefined);
      transaction.onabort = () => reject(isFull(transaction.error) ? new Error("this browser's storage is full; delete what you don't need") : transaction.error);
      (async () => change(stores, () => transaction.commit()))().catch((error) => {
        reject(error);
        transaction.abort();
      });
    });
  }
}
