// @ts-check
// Stories in the browser, or nowhere. server_store.js has those on the server.

import { searchTree } from "./search.js";
import { suggestTitle } from "./titles.js";
import { newId, ROOT, Tree } from "./tree.js";
import { repair, upgradeQuestions, withoutQuestions } from "./validation.js";

/**
 * @typedef {import("./tree.js").StoryNode} StoryNode
 * @typedef {[place: string, text: string]} Draft text that isn't in the tree yet, and the node it was typed at
 * @typedef {{ id: string, title: string, changed?: number }} StoryInfo
 * @typedef {object} StoreListener
 * @property {(node: StoryNode) => void} changed
 * @property {(story: StoryInfo) => void} renamed
 * @property {(background: any) => void} background
 * @property {() => void} deleted
 * @property {(drafts: [place: string, text: string | undefined][], page: Record<string, any>) => void} saved by another
 *   tab or device: these drafts, and the rest of the page's state
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
   * @returns {Promise<any>}
   */
  async rename(_story, _title) {}

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

const TRASH_MILLISECONDS = 30 * 24 * 3600 * 1000;

const STORES = ["stories", "nodes", "page"];

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
    this.removed.add(id);
    await this.#mark(id, Date.now());
    this.tabs.postMessage({ id, isRemoved: true });
  }

  async restore({ id }) {
    await this.#mark(id, undefined);
    this.removed.delete(id);
  }

  async #mark(id, deleted) {
    const story = await finished(this.database.transaction("stories").objectStore("stories").get(id));
    await this.write(({ stories }) => stories.put({ ...story, deleted }));
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
    story.title = title;
    await this.write(({ stories }) => stories.put({ ...story, changed: Date.now() }));
    this.tabs.postMessage({ id: story.id, title });
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
    this.tabs.postMessage({ id, isRemoved: true });
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
    const { drafts, question } = withoutQuestions(keys.map(([, place], k) => [place, texts[k]]));
    return { page: { question, ...page }, drafts };
  }

  /**
   * Store a page. Each draft is read before it is replaced, in the same transaction: another tab may have changed it.
   * The transaction doesn't wait for that, because the page may be closing.
   */
  async savePage(id, fields, drafts = [], knows = (_place, _text) => true, nodes = [], story = null) {
    if (this.removed.has(id)) return [];
    this.saves++;
    const replaced = [];
    await this.write((stores) => {
      stores.page.put(fields, id);
      for (const [place, text] of drafts) {
        stores.page.get([id, place]).onsuccess = ({ target }) => replaced.push([place, target.result]);
        if (text === undefined) stores.page.delete([id, place]);
        else stores.page.put(text, [id, place]);
      }
      if (story) stores.stories.put(story);
      for (const node of nodes) stores.nodes.put(node);
    });
    const unknown = replaced.filter(([place, text]) => text !== undefined && !knows(place, text));
    if (!unknown.length) this.tabs.postMessage({ id, places: drafts.map(([place]) => place), nodes: nodes.map((node) => node.id) });
    return unknown;
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
        listener.saved(news.drafts, news.page);
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
      if (data.isRemoved) {
        this.removed.add(id);
        listener.deleted();
      } else if (data.title !== undefined) listener.renamed({ id, title: data.title });
      else readSoon(data);
    };
    for (const message of this.early.splice(0)) this.tabs.onmessage(message);
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
      transaction.onabort = () => reject(transaction.error);
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
    if (!this.story.title) await this.rename(suggestTitle(fields));
    return fields;
  }

  async rename(title) {
    await this.stories.rename(this.story, title);
    this.listener?.renamed(this.story);
  }

  save(nodes, page, drafts, knows) {
    const { id } = this.story;
    const story = nodes.length ? { ...this.story, changed: Date.now() } : null;
    return this.stories.savePage(id, page, drafts, knows, nodes.map((node) => ({ ...node, story: id })), story);
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
