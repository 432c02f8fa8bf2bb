// @ts-check
// Stories in the browser, or nowhere. server_store.js has those on the server.

import { same } from "./merging.js";
import { searchTree } from "./search.js";
import { suggestTitle } from "./titles.js";
import { newId, ROOT, Tree } from "./tree.js";
import { repair, upgradeQuestions, withoutQuestions } from "./validation.js";

/**
 * @typedef {import("./tree.js").StoryNode} StoryNode
 * @typedef {[place: string, text: string]} Draft text that isn't in the tree yet, and the node it was typed at
 * @typedef {{ id: string, title: string, changed?: number, words?: number, change?: number }} StoryInfo
 * @typedef {object} StoreListener
 * @property {(node: StoryNode) => void} changed
 * @property {(story: StoryInfo) => void} renamed
 * @property {(background: any) => void} background memory, note and lore, merged with what is on another device
 * @property {(isErased?: boolean) => void} deleted put into the trash, or erased
 * @property {() => void} restored from the trash
 * @property {(drafts: [place: string, text: string | undefined][], page: Record<string, any>, base?: Record<string, any>) => void} saved
 *   by another tab or device: these drafts, and the rest of the page's state; `base` is the last state that both have seen
 * @property {(page: Record<string, any>, base: Record<string, any>) => void} replaced this page has replaced another
 *   tab's, and is to save both; `base` as for `saved`
 * @property {(place: string, text: string) => boolean} knows whether this page has had a draft
 * @property {(place: string, text: string, marks?: string) => any} split this draft was written over another one
 * @property {(place: { current: string, shown: string[] }) => void} moved where the writer is on another device
 */

const finished = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

/**
 * A story that is stored nowhere, as in a browser that stores nothing. Other stores extend it.
 */
export class Store {
  /** Whether other devices see the story. Such a store adds the alternatives of a request itself, and nodes only get children. */
  isShared = false;
  story = { id: "", title: "" };

  /**
   * Read the nodes, the drafts, and the rest of the page's state.
   * @returns {Promise<{ nodes: StoryNode[], drafts: Draft[], page: Record<string, any> }>}
   */
  async load() {
    return { nodes: [], drafts: [], page: {} };
  }

  /**
   * Add a node of these fields. Returns it, with an id if the store assigns ids.
   * @param {Partial<StoryNode>} fields
   * @returns {Promise<Partial<StoryNode>>}
   */
  async add(fields) {
    return fields;
  }

  /**
   * Store changed nodes and drafts, and the page's state, all at once. A draft without text is deleted.
   * @param {StoryNode[]} _nodes
   * @param {Record<string, any>} _page
   * @param {[place: string, text: string | undefined][]} _drafts
   * @param {(place: string, text: string) => boolean} [_knows] whether this page has had a draft
   * @returns {Promise<Draft[]>} drafts of others that were replaced, and that this page doesn't know
   */
  async save(_nodes, _page, _drafts, _knows) {
    return [];
  }

  /**
   * Return the fields of a request that continues a node.
   * @param {import("./tree.js").Tree} tree
   * @param {string} id
   * @returns {Record<string, any>}
   */
  place(tree, id) {
    return { prompt: tree.prompt(id) };
  }

  /**
   * Report changes by others until the story is deleted.
   * @param {StoreListener} _listener
   */
  async watch(_listener) {}
}

/** The stories of a browser that stores nothing: one empty story. Other collections of stories extend it. */
export class Stories {
  /**
   * List the stories, the last changed first.
   * @returns {Promise<StoryInfo[]>}
   */
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

  /**
   * @param {StoryInfo} _story
   * @param {string} _title
   * @returns {Promise<StoryInfo>}
   * @throws {Error} with the status 409 if the story doesn't have its title any more
   */
  async rename(_story, _title) {
    throw new Error("This browser stores no stories.");
  }

  /**
   * Put a story into the trash, where it stays for 30 days.
   * @param {StoryInfo} _story
   */
  async remove(_story) {}

  /**
   * List the stories in the trash, the last deleted first.
   * @returns {Promise<StoryInfo[]>}
   */
  async trash() {
    return [];
  }

  /**
   * Take a story out of the trash.
   * @param {StoryInfo} _story
   */
  async restore(_story) {}

  /**
   * Delete a story for good.
   * @param {StoryInfo} _story
   */
  async erase(_story) {}

  /**
   * @param {StoryInfo} _story
   * @returns {Store}
   */
  store(_story) {
    return new Store();
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

  /**
   * Read what this device shows of a story, as `Store.load` returns it: the current place, settings, drafts.
   * @param {string} _id
   * @returns {Promise<{ page: Record<string, any>, drafts: Draft[] }>}
   */
  async page(_id) {
    return { page: {}, drafts: [] };
  }

  /**
   * @param {string} _id
   * @param {Record<string, any>} _page
   * @param {[place: string, text: string | undefined][]} [_drafts]
   * @param {(place: string, text: string) => boolean} [_knows] as for `Store.save`
   * @returns {Promise<Draft[]>}
   */
  async savePage(_id, _page, _drafts, _knows) {
    return [];
  }

  /**
   * Report what other tabs save.
   * @param {string} _id
   * @param {StoreListener} _listener
   */
  follow(_id, _listener) {}
}

export const TRASH_MILLISECONDS = 30 * 24 * 3600 * 1000;

const STORES = ["stories", "nodes", "page"];

const MOST_VERSIONS = 200; // of a page, to remember
const MOST_TABS = 20; // to count the saves of

/**
 * The versions of pages that this tab has saved or read, by story. A page counts in `seen` how many saves of each tab
 * it knows. So it is clear what two versions have in common, also if a tab was frozen for a day.
 */
export class PageVersions {
  #versions = new Map();
  #seen = new Map();
  #steps = new Map(); // the size of the last one's undo steps, which are too long to compare
  #tab = newId().slice(0, 8);

  /**
   * Count a save of this tab.
   * @param {string} id
   * @param {Record<string, any>} fields
   * @returns {{ page: Record<string, any>, isKnown: (page: Record<string, any>) => boolean }} the page to store, and
   *   whether this tab had seen a page before
   */
  next(id, fields) {
    const seen = this.#seen.get(id) ?? {};
    const { [this.#tab]: count = 0, ...others } = seen;
    const now = { ...Object.fromEntries(Object.entries(others).slice(1 - MOST_TABS)), [this.#tab]: count + 1 };
    const page = { ...fields, seen: now };
    this.#remember(id, page, now);
    return { page, isKnown: (other) => isWithin(other.seen, seen) };
  }

  /**
   * Take note of a page that was read.
   * @param {string} id
   * @param {Record<string, any>} page
   * @returns {Record<string, any>} the last version that both this tab and the page's have seen; empty if that is unknown
   */
  hear(id, page) {
    const base = this.#versions.get(id)?.findLast((each) => isWithin(each.seen, page.seen)) ?? {};
    const seen = this.#seen.get(id) ?? {};
    const more = Object.entries(page.seen ?? {}).filter(([tab, count]) => count > (seen[tab] ?? 0));
    this.#remember(id, page, { ...seen, ...Object.fromEntries(more) });
    return base;
  }

  /** Take note that the last save of a page failed. */
  fail(id) {
    this.#steps.delete(id);
  }

  /** Whether these fields are those of the last version, and saved. */
  isLast(id, fields) {
    const last = this.#versions.get(id)?.at(-1);
    if (!last || this.#steps.get(id) !== sizeOf(fields.steps)) return false;
    return same(small(last), small(fields));
  }

  #remember(id, page, seen) {
    this.#seen.set(id, seen);
    this.#steps.set(id, sizeOf(page.steps));
    this.#versions.set(id, [...(this.#versions.get(id) ?? []), { ...small(page), seen: page.seen }].slice(-MOST_VERSIONS));
  }
}

/** A page without what is long and only changes with drafts. */
const small = ({ seen: _, steps: __, marks: ___, ...others }) => others;

const sizeOf = ({ done = [], undone = [] } = {}) =>
  JSON.stringify([done, undone].map((steps) => [steps.length, steps.at(-1)?.changes]));

const isWithin = (seen = {}, others = {}) => Object.entries(seen).every(([tab, count]) => count <= (others[tab] ?? 0));

const isFull = (error) => error?.name === "QuotaExceededError";

/** The keys of a story's drafts, in the object store of pages. */
const draftsOf = (id) => IDBKeyRange.bound([id], [id, []]);

/** Stories in the browser's IndexedDB, with a record per node and draft, so that only changes are written. */
export class BrowserStories extends Stories {
  /**
   * Open the database.
   * @throws {DOMException} if the browser stores nothing, as in some private windows
   */
  static async open() {
    const opening = indexedDB.open("srb", 2);
    opening.onupgradeneeded = ({ oldVersion }) => upgrade(opening, oldVersion);
    const opened = new BrowserStories(await finished(opening));
    for (const story of await opened.#all()) if (story.deleted < Date.now() - TRASH_MILLISECONDS) await opened.erase(story);
    return opened;
  }

  constructor(database) {
    super();
    this.database = database;
    this.removed = new Set(); // ids of deleted stories
    this.tabs = new BroadcastChannel("srb-stories"); // says what this tab has saved
    this.early = []; // messages of other tabs before `follow`
    this.tabs.onmessage = (message) => this.early.push(message);
    this.saves = 0; // by this tab
    this.pages = new PageVersions();
    /** @type {StoreListener | null} */
    this.listener = null;
    this.unsaid = new Map(); // by story, what other tabs aren't told until it is merged with theirs
    /** @type {Record<string, any>[][]} */
    this.replaced = []; // pages of other tabs that this one has replaced before `follow`, with their bases
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
  #update(id, change) {
    return new Promise((resolve, reject) => {
      const { stories } = this.#stores("readwrite");
      const { transaction } = stories;
      transaction.onabort = () => reject(transaction.error);
      stories.get(id).onsuccess = ({ target: { result } }) => {
        const changes = result && change(result);
        if (changes) stories.put({ ...result, ...changes });
        transaction.oncomplete = () => resolve({ ...result, ...changes });
      };
    });
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
      page.delete(draftsOf(id));
      for (const each of ids) nodes.delete(each);
    });
    this.tabs.postMessage({ id, isErased: true });
  }

  store(story) {
    return new BrowserStore(story, this);
  }

  async *find(query, open) {
    const others = (await this.list()).filter(({ id }) => id !== open.id);
    for (const [k, story] of others.entries()) {
      const { nodes, drafts } = await this.store(story).load();
      repair(nodes);
      upgradeQuestions(nodes);
      const found = searchTree(new Tree(nodes), drafts, query).map((each) => ({ ...each, story }));
      yield { found, progress: `${k + 1} of ${others.length} other stories` };
    }
  }

  nodes({ id }) {
    return finished(this.database.transaction("nodes").objectStore("nodes").index("story").getAll(id));
  }

  async page(id) {
    const kept = this.database.transaction("page").objectStore("page");
    const found = [kept.get(id), kept.getAllKeys(draftsOf(id)), kept.getAll(draftsOf(id))].map(finished);
    const [page = {}, keys, texts] = await Promise.all(found);
    this.pages.hear(id, page);
    const { drafts, question } = withoutQuestions(keys.map(([, place], k) => [place, texts[k]]));
    return { page: { question, ...page }, drafts };
  }

  /**
   * Store a page, unless nothing has changed: this tab may be out of date. The page and each draft are read before they
   * are replaced, in the same transaction: another tab may have changed them. The transaction doesn't wait for that,
   * because the page may be closing.
   */
  async savePage(id, fields, drafts = [], knows = (_place, _text) => true, nodes = []) {
    if (this.removed.has(id)) return [];
    if (!drafts.length && !nodes.length && this.pages.isLast(id, fields)) return [];
    this.saves++;
    const replaced = [];
    const { page, isKnown } = this.pages.next(id, fields);
    let before;
    await this.write((stores) => {
      stores.page.get(id).onsuccess = ({ target }) => (before = target.result);
      stores.page.put(page, id);
      for (const [place, text] of drafts) {
        stores.page.get([id, place]).onsuccess = ({ target }) => replaced.push([place, target.result]);
        if (text === undefined) stores.page.delete([id, place]);
        else stores.page.put(text, [id, place]);
      }
      for (const node of nodes) stores.nodes.put(node);
    }).catch((error) => {
      this.pages.fail(id);
      throw error;
    });
    if (nodes.length || drafts.length) this.#update(id, () => ({ changed: Date.now(), words: fields.words })).catch(() => {}); // only the list depends on it
    const unknown = replaced.filter(([place, text]) => text !== undefined && !knows(place, text));
    const isOther = before && !isKnown(before);
    if (isOther) this.#tell(before, this.pages.hear(id, before)); // it merges both, and saves again
    const { places = [], nodes: others = [] } = this.unsaid.get(id) ?? {};
    const news = { id, places: [...places, ...drafts.map(([place]) => place)], nodes: [...others, ...nodes.map((node) => node.id)] };
    if (unknown.length || isOther) this.unsaid.set(id, news);
    else {
      this.unsaid.delete(id);
      this.tabs.postMessage(news);
    }
    return unknown;
  }

  /** Report a page of another tab that this one has replaced. */
  #tell(page, base) {
    if (this.listener) this.listener.replaced(page, base);
    else this.replaced.push([page, base]);
  }

  follow(id, listener) {
    const [places, nodes] = [new Set(), new Set()];
    /** @type {Promise<void> | null} */
    let reading = null;
    const read = async () => {
      for (let saves = -1; places.size || nodes.size || saves !== this.saves; ) {
        saves = this.saves; // what was typed while this reads is saved, and compared then
        const asked = { places: [...places], nodes: [...nodes] };
        const news = await this.#read(id, asked);
        if (saves !== this.saves) continue;
        for (const each of asked.places) places.delete(each);
        for (const each of asked.nodes) nodes.delete(each);
        for (const node of news.nodes) if (node) listener.changed(node);
        listener.saved(news.drafts, news.page, this.pages.hear(id, news.page));
      }
      reading = null;
    };
    const readSoon = (news) => {
      for (const each of news.places) places.add(each);
      for (const each of news.nodes) nodes.add(each);
      reading ??= read();
    };
    this.tabs.onmessage = ({ data }) => {
      if (data.id !== id) return;
      if (data.isErased) this.removed.add(id);
      if (data.isErased || data.isRemoved) listener.deleted(data.isErased);
      else if (data.isRestored) listener.restored();
      else if (data.title !== undefined) listener.renamed({ id, title: data.title });
      else readSoon(data);
    };
    for (const message of this.early.splice(0)) this.tabs.onmessage(message);
    this.listener = listener;
    for (const [page, base] of this.replaced.splice(0)) this.#tell(page, base);
    // A page that was frozen may have missed messages.
    addEventListener("focus", async () => {
      const { page } = this.#stores("readonly");
      readSoon({ places: (await finished(page.getAllKeys(draftsOf(id)))).map(([, place]) => place), nodes: [] });
    });
  }

  async #read(id, { places, nodes }) {
    const stores = this.#stores("readonly");
    const page = finished(stores.page.get(id));
    const drafts = places.map(async (place) => /** @type {[string, any]} */ ([place, await finished(stores.page.get([id, place]))]));
    const found = nodes.map((each) => finished(stores.nodes.get(each)));
    return { page: (await page) ?? {}, drafts: await Promise.all(drafts), nodes: await Promise.all(found) };
  }

  #stores(mode) {
    const transaction = this.database.transaction(STORES, mode);
    return Object.fromEntries(STORES.map((name) => [name, transaction.objectStore(name)]));
  }

  /** Change the object stores in one transaction. */
  write(change) {
    const stores = this.#stores("readwrite");
    change(stores);
    const { transaction } = stores.page;
    transaction.commit(); // now: the page may be closing
    return new Promise((resolve, reject) => {
      transaction.oncomplete = () => resolve(undefined);
      transaction.onabort = () => reject(isFull(transaction.error) ? new Error("this browser's storage is full; delete what you don't need") : transaction.error);
    });
  }
}

class BrowserStore extends Store {
  constructor(story, stories) {
    super();
    this.story = story;
    this.stories = stories;
    this.listener = null;
  }

  async load() {
    const [nodes, said] = await Promise.all([this.stories.nodes(this.story), this.stories.page(this.story.id)]);
    return { nodes, ...said };
  }

  async add(fields) {
    if (!this.story.title) await this.name(suggestTitle(fields));
    return fields;
  }

  /** Name a story, unless another tab has named it meanwhile. */
  async name(title) {
    try {
      this.story = await this.stories.rename(this.story, title);
    } catch (error) {
      if (error.status !== 409) throw error;
      [this.story] = (await this.stories.list()).filter(({ id }) => id === this.story.id);
    }
    this.listener?.renamed(this.story);
  }

  save(nodes, page, drafts, knows) {
    const { id } = this.story;
    return this.stories.savePage(id, page, drafts, knows, nodes.map((node) => ({ ...node, story: id })));
  }

  async watch(listener) {
    this.listener = listener;
    const renamed = (story) => listener.renamed((this.story = { ...this.story, ...story }));
    this.stories.follow(this.story.id, { ...listener, renamed });
  }
}

/** Version 1 had a single story, and its nodes no story ids. */
function upgrade({ result: database, transaction }, version) {
  database.createObjectStore("stories", { keyPath: "id" });
  if (version < 1) {
    database.createObjectStore("page");
    database.createObjectStore("nodes", { keyPath: "id" }).createIndex("story", "story");
    return;
  }
  const [nodes, page, stories] = ["nodes", "page", "stories"].map((name) => transaction.objectStore(name));
  nodes.createIndex("story", "story");
  nodes.getAll().onsuccess = ({ target: { result } }) => {
    if (!result.length) return;
    const first = result.find((node) => node.parent === ROOT);
    stories.put({ id: "first", title: first ? suggestTitle(first) : "", changed: Date.now() });
    for (const node of result) nodes.put({ ...node, story: "first" });
    page.get("page").onsuccess = ({ target }) => target.result && page.put(target.result, "first");
  };
}
