// Where stories are kept: nowhere, or in the browser. story_store.js keeps them on the server.

import { find } from "./find.js";
import { plain, withoutQuestions } from "./older.js";
import { mend } from "./sound.js";
import { newId, ROOT, titleOf, Tree } from "./tree.js";

const finished = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

// Keeps nothing, where the browser lets it. What the others do, too:
export class Store {
  // Whether others see it as well. Such a store adds the alternatives of a request itself, and texts only grow below others.
  isShared = false;
  story = { id: "", title: "" };

  // The nodes, the drafts as [place, text], and what else is on the page: {nodes, drafts, page}.
  async load() {
    return { nodes: [], drafts: [], page: {} };
  }

  // Adds a node of these fields; returns it, with an id if the store gives those.
  async add(fields) {
    return fields;
  }

  // Keeps nodes and drafts that have changed, all at once, and what else is on the page. A draft without text is gone.
  async save(_nodes, _page, _drafts) {}

  // The fields of a request that goes on from a node.
  place(tree, id) {
    return { prompt: tree.prompt(id) };
  }

  // Goes on telling what changes: listener.changed(node), renamed(story), beside(values), deleted().
  async watch(_listener) {}
}

// No stories, where the browser keeps nothing. What the others do, too; a story is {id, title}.
export class Stories {
  // The one that was changed last first.
  async list() {
    return [{ id: "", title: "" }];
  }

  // Makes a story of nodes, which get other ids: {story, ids}, where ids is a Map of the old ones to these. beside: what stands
  // beside it, which a page has, too.
  async make(_title, _nodes, _beside) {
    throw new Error("This browser keeps no stories. Reload the page for another one.");
  }

  async rename(_story, _title) {}

  async remove(_story) {}

  store(_story) {
    return new Store();
  }

  // Finds words in all stories but the one that is open, part by part: {found, progress}. Each of `found` is as find.js has it, with its
  // `story`. progress: what has been searched so far, in words.
  async *find(_query, _open) {}

  // What that doesn't search, in words.
  unsearched = "";

  // What a device shows of a story, as Store.load has it: where one is in it, its settings, and what was typed.
  async page(_id) {
    return { page: {}, drafts: [] };
  }

  async savePage(_id, _page, _drafts) {}
}

// The keys of a story's drafts, among those of the pages.
const draftsOf = (id) => IDBKeyRange.bound([id], [id, []]);

// In the browser's IndexedDB: a record per node and per draft, so that saving costs what has changed.
export class BrowserStories extends Stories {
  // Raises what the browser says where it keeps nothing, as in some private windows.
  static async open() {
    const opening = indexedDB.open("srb", 2);
    opening.onupgradeneeded = ({ oldVersion }) => upgrade(opening, oldVersion);
    return new BrowserStories(await finished(opening));
  }

  constructor(database) {
    super();
    this.database = database;
    this.removed = new Set(); // ids of stories that nothing may be kept of any more
  }

  async list() {
    const all = await finished(this.database.transaction("stories").objectStore("stories").getAll());
    return all.sort((a, b) => b.changed - a.changed);
  }

  async make(title = "", nodes = []) {
    const story = { id: newId(), title, changed: Date.now() };
    const ids = new Map([[ROOT, ROOT], ...nodes.map((node) => [node.id, newId()])]);
    await this.write(({ stories, nodes: kept }) => {
      stories.put(story);
      for (const node of nodes) kept.put({ ...node, id: ids.get(node.id), parent: ids.get(node.parent), story: story.id });
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
      mend(nodes);
      plain(nodes);
      const found = find(new Tree(nodes), drafts, query).map((each) => ({ ...each, story }));
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

  // Keeps a page. also(stores) does more in the same transaction.
  async savePage(id, fields, drafts = [], also = () => {}) {
    if (this.removed.has(id)) return;
    await this.write((stores) => {
      stores.page.put(fields, id);
      for (const [place, text] of drafts)
        if (text === undefined) stores.page.delete([id, place]);
        else stores.page.put(text, [id, place]);
      also(stores);
    });
  }

  // Does what changes the object stores, in one transaction.
  write(change) {
    const names = ["stories", "nodes", "page"];
    const transaction = this.database.transaction(names, "readwrite");
    change(Object.fromEntries(names.map((name) => [name, transaction.objectStore(name)])));
    transaction.commit(); // now, as the page may be about to close
    return new Promise((resolve, reject) => {
      transaction.oncomplete = resolve;
      transaction.onabort = () => reject(transaction.error);
    });
  }
}

class BrowserStore extends Store {
  constructor(story, stories) {
    super();
    Object.assign(this, { story, stories, listener: null });
  }

  async load() {
    const [nodes, said] = await Promise.all([this.stories.nodes(this.story), this.stories.page(this.story.id)]);
    return { nodes, ...said };
  }

  async add(fields) {
    if (!this.story.title) await this.rename(titleOf(fields));
    return fields;
  }

  async rename(title) {
    await this.stories.rename(this.story, title);
    this.listener?.renamed(this.story);
  }

  save(nodes, page, drafts) {
    return this.stories.savePage(this.story.id, page, drafts, ({ stories, nodes: kept }) => {
      if (nodes.length) stories.put({ ...this.story, changed: Date.now() });
      for (const node of nodes) kept.put({ ...node, story: this.story.id });
    });
  }

  async watch(listener) {
    this.listener = listener;
  }
}

// Version 1 had one story, whose nodes didn't say so.
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
    stories.put({ id: "first", title: first ? titleOf(first) : "", changed: Date.now() });
    for (const node of result) nodes.put({ ...node, story: "first" });
    page.get("page").onsuccess = ({ target }) => target.result && page.put(target.result, "first");
  };
}
