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
   * @returns {Promise<void>}
   */
  async save(_nodes, _page, _drafts) {}

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

  /** @param {StoryInfo} _story */
  async remove(_story) {}

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
   * @returns {Promise<void>}
   */
  async savePage(_id, _page, _drafts) {}
}

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
    return new BrowserStories(await finished(opening));
  }

  constructor(database) {
    super();
    this.database = database;
    this.removed = new Set(); // ids of deleted stories
  }

  async list() {
    const all = await finished(this.database.transaction("stories").objectStore("stories").getAll());
    return all.sort((a, b) => b.changed - a.changed);
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
  }

  async remove({ id }) {
    this.removed.add(id);
    const ids = await finished(this.database.transaction("nodes").objectStore("nodes").index("story").getAllKeys(id));
    await this.write(({ stories, nodes, page }) => {
      stories.delete(id);
      page.delete(id);
      page.delete(draftsOf(id));
      for (const each of ids) nodes.delete(each);
    });
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

  /** Store a page. `also(stores)` adds to the same transaction. */
  async savePage(id, fields, drafts = [], also = (_stores) => {}) {
    if (this.removed.has(id)) return;
    await this.write((stores) => {
      stores.page.put(fields, id);
      for (const [place, text] of drafts)
        if (text === undefined) stores.page.delete([id, place]);
        else stores.page.put(text, [id, place]);
      also(stores);
    });
  }

  /** Change the object stores in one transaction. */
  write(change) {
    const names = ["stories", "nodes", "page"];
    const transaction = this.database.transaction(names, "readwrite");
    change(Object.fromEntries(names.map((name) => [name, transaction.objectStore(name)])));
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

  save(nodes, page, drafts) {
    return this.stories.savePage(this.story.id, page, drafts, ({ stories, nodes: nodeStore }) => {
      if (nodes.length) stories.put({ ...this.story, changed: Date.now() });
      for (const node of nodes) nodeStore.put({ ...node, story: this.story.id });
    });
  }

  async watch(listener) {
    this.listener = listener;
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
