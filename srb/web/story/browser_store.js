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
 * @typedef {object} Replica what a page has of a story, apart from its nodes. `meet` merges what others have made of it.
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

/**
 * A story that is stored nowhere, as in a browser that stores nothing. Other stores extend it.
 */
export class Store {
  /** Whether other devices see the story. Such a store adds the alternatives of a request itself, and nodes only get children. */
  isShared = false;
  /** Where the writer is, as other devices know it. @type {any} */
  knownPlace = null;
  /** @type {StoreListener | null} */
  listener = null;
  /** That of the page. @type {any} */
  replica = null;
  /** @type {any} */
  story;

  /**
   * @param {StoryInfo} story
   * @param {any} stories the collection that it is in
   */
  constructor(story = { id: "", title: "" }, stories = null) {
    this.story = story;
    this.stories = stories;
  }

  /**
   * Read the nodes, the drafts, and the rest of the page's state.
   * @returns {Promise<{ nodes: StoryNode[], drafts: [place: string, draft: Draft][], page: Record<string, any> }>}
   */
  async load() {
    return { nodes: [], drafts: [], page: {} };
  }

  /**
   * Keep a page, which has what `load` returned, and others the same. Resolves when it has what is new on the server.
   * @param {Replica} _replica
   */
  async begin(_replica) {}

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
   * @param {Partial<StoryNode>} fields
   * @returns {Promise<Partial<StoryNode>>}
   */
  async add(fields) {
    return fields;
  }

  /**
   * Store nodes, the drafts of places, and the page's state, all at once. What others have changed is merged.
   * @param {StoryNode[]} _nodes
   * @param {string[]} _places
   * @param {boolean} _isTyped whether the writer has changed one of these drafts
   */
  async save(_nodes, _places, _isTyped) {}

  /**
   * Store what isn't stored yet, because the page may be closing.
   * @param {StoryNode[]} _nodes
   */
  leave(_nodes) {}

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
   * @returns {Promise<{ page: Record<string, any>, drafts: [place: string, draft: Draft][] }>}
   */
  async page(_id) {
    return { page: {}, drafts: [] };
  }

  /**
   * Store the page of a story that isn't open.
   * @param {string} _id
   * @param {Record<string, any>} _page
   * @param {[place: string, draft: Draft][]} _drafts
   */
  async keep(_id, _page, _drafts) {}

  /**
   * Read values, and put those that `change` returns, in one transaction.
   * @param {any[]} keys
   * @param {(values: any[]) => [key: any, value: any][]} change
   * @param {StoryNode[]} [_nodes] to store, too
   */
  async transact(keys, change, _nodes) {
    for (const [key, value] of change(keys.map((key) => this.#kept.get(String(key))))) this.#kept.set(String(key), value);
  }

  /**
   * Exchange with other tabs when they store something.
   * @param {string} _id
   * @param {StoreListener} _listener
   * @param {Replica} _replica
   */
  follow(_id, _listener, _replica) {}

  #kept = new Map(); // in a browser that stores nothing
  #bases = new Map(); // the values that this tab has stored or read, by key
  #turn = Promise.resolve();
  #last = ""; // what was stored last of this page's own state
  #tab = tabId();
  #notes = 0; // of what isn't stored yet; a page knows how many of each tab it has

  /** Take note of a value that this tab has stored or read. */
  know(key, value) {
    this.#bases.set(String(key), value);
  }

  /**
   * Exchange the page and some drafts of a story with what other tabs have stored of them: then both are the same.
   * Resolves to the places whose drafts were stored; to null if nothing was.
   * @param {string} id
   * @param {Replica} replica
   * @param {object} what
   * @param {string[]} [what.places]
   * @param {StoryNode[]} [what.nodes] to store, too
   * @param {() => Record<string, any>} [what.own] returns this page's own state, to store
   * @param {Record<string, number>} [what.taken] the notes of closed tabs that the replica has
   * @param {any[]} [what.keys] of other values, for `what.change`, which returns those to put
   * @param {(values: any[]) => [key: any, value: any][]} [what.change]
   * @returns {Promise<string[] | null>}
   */
  exchange(id, replica, /** @type {any} */ what) {
    if (what.own) this.note(id, replica, what.own());
    const turn = this.#turn.then(compositionEnd).then(() => this.#exchange(id, replica, what)); // the previous one is stored then
    this.#turn = turn.then(() => {}, () => {});
    return turn;
  }

  async #exchange(id, replica, { places: asked = [], nodes = [], own, keys = [], taken = {}, change = (_values) => [] }) {
    const { drafts } = replica;
    const places = [...new Set(asked)];
    /** @type {[key: any, value: any][]} */
    let puts = [];
    const last = this.#last;
    /** @type {[key: any, value: any][]} */
    let read = [];
    let typed = new Map();
    const merge = (/** @type {any[]} */ [page = {}, ...values]) => {
      replica.meet(this.#bases.get(id) ?? {}, page);
      places.forEach((place, k) => replica.meetDraft(place, this.#bases.get(String([id, place])), values[k]));
      read = [[id, page], ...places.map((place, k) => /** @type {[any, any]} */ ([[id, place], values[k]]))];
      for (const [key, value] of read) this.know(key, value);
      const others = change(values.slice(places.length));
      const isStored = (place, k) => isSameDraft(drafts.get(place), values[k]) && !drafts.unsent.has(place);
      const news = places.flatMap((place, k) => (isStored(place, k) ? [] : [{ place, stored: values[k] }]));
      typed = new Map(news.map(({ place }) => [place, drafts.typed(place)]));
      puts = news.map(({ place, stored }) => [[id, place], drafts.store(place, stored)]);
      const { shared } = replica;
      const now = own?.();
      if (now) this.#last = stateOf(now);
      const isNew = this.#last !== last || puts.length || Object.keys(shared).some((name) => !same(shared[name], page[name]));
      const seen = { ...Object.fromEntries(Object.entries(page.seen ?? {}).slice(1 - MOST_TABS)), ...taken, [this.#tab]: this.#notes };
      if (isNew || (own && nodes.length)) puts.push([id, { ...(now ?? page), ...shared, seen }]);
      for (const [key, value] of puts) this.know(key, value);
      return [...puts, ...others];
    };
    await this.transact([id, ...places.map((place) => [id, place]), ...keys], merge, nodes).catch((error) => {
      for (const [key, value] of read) this.know(key, value);
      for (const [place, changes] of typed) drafts.unstore(place, changes);
      this.#last = last;
      throw error;
    });
    if (own) this.note(id, replica, own());
    return puts.length || nodes.length ? puts.flatMap(([key]) => (key === id ? [] : [key[1]])) : null;
  }

  /**
   * Note what isn't stored yet, at once: the page may be closed before it is. `begin` gives that to another page.
   * @param {string} id
   * @param {Replica} replica
   * @param {Record<string, any>} own
   * @param {{ isLast?: boolean }} [options] whether undo steps, which are long, are noted, too, if there is room
   */
  note(id, { drafts, shared }, own, { isLast = document.hidden } = {}) {
    const known = (key) => this.#bases.get(String(key)) ?? {};
    const places = drafts.places.filter((place) => !isSameDraft(this.#bases.get(String([id, place])), drafts.get(place)));
    const names = Object.keys(shared).filter((name) => !same(shared[name], known(id)[name]));
    const name = `${LEFT} ${id} ${this.#tab}`;
    if (!places.length && !names.length && stateOf(own) === this.#last) return void saveLocal(name, undefined);
    const changed = (place) => {
      const draft = drafts.get(place) ?? {};
      const stored = known([id, place]);
      if (draft.text === undefined) return [place, draft];
      return [place, { ...draft, text: "" }, drafts.since(place, stored, drafts.typed(place)).toJSON(), stored.version];
    };
    const of = (values) => Object.fromEntries(names.map((each) => [each, values[each]]));
    const noted = { count: ++this.#notes, time: Date.now(), drafts: places.map(changed), base: of(known(id)), shared: of(shared), own: { ...own, steps: undefined } };
    if (!isLast || saveLocal(name, { ...noted, own })) saveLocal(name, noted);
  }

  /** Return this tab's note from before a reload, if it isn't stored. */
  ownNote(id) {
    const { seen = {} } = this.#bases.get(id) ?? {};
    const note = loadLocal(`${LEFT} ${id} ${this.#tab}`);
    this.#notes = Math.max(this.#notes, seen[this.#tab] ?? 0, note.count ?? 0);
    return note.count > (seen[this.#tab] ?? 0) ? note : null;
  }

  /**
   * Give a page what it has noted before it was reloaded.
   * @param {string} id
   * @param {Replica} replica
   */
  async begin(id, replica) {
    const note = this.ownNote(id);
    if (note) {
      replica.meet(note.base, note.shared);
      for (const [place, ...noted] of note.drafts) {
        const { draft, made } = this.#noted(id, replica, place, noted);
        replica.drafts.put(place, draft.text, () => draft.marks, made);
      }
      await this.exchange(id, replica, { places: note.drafts.map(([place]) => place), own: () => replica.own });
    }
    await this.takeLeft(id, replica);
  }

  /**
   * Give a page what tabs that were closed have noted and not stored.
   * @param {string} id
   * @param {Replica} replica
   */
  async takeLeft(id, replica) {
    const { seen = {} } = this.#bases.get(id) ?? {};
    const tabOf = (name) => name.split(" ").at(-1);
    const notes = localNames(`${LEFT} ${id} `).filter((name) => tabOf(name) !== this.#tab).map((name) => ({ name, ...loadLocal(name) }));
    const left = notes.filter(({ time }) => time < Date.now() - ALIVE);
    if (left.length < notes.length) setTimeout(() => this.takeLeft(id, replica).catch(() => {}), ALIVE);
    if (!left.length) return;
    for (const { name, count, drafts, base, shared } of left) {
      if (count <= seen[tabOf(name)]) continue; // it was stored
      replica.meet(base, shared);
      for (const [place, ...noted] of drafts) {
        const { draft } = this.#noted(id, replica, place, noted);
        replica.meetDraft(place, this.#bases.get(String([id, place])), draft, replica.drafts.typed(place));
        replica.drafts.unsent.delete(place); // the server wasn't asked
      }
    }
    const places = left.flatMap(({ drafts }) => drafts.map(([place]) => place));
    const taken = Object.fromEntries(left.map(({ name, count }) => [tabOf(name), count]));
    await this.exchange(id, replica, { places: [...new Set(places)], own: () => replica.own, taken });
    for (const { name } of left) saveLocal(name, undefined);
  }

  /** Whether tabs have noted something of a story that may not be stored. */
  hasNotes(id) {
    return localNames(`${LEFT} ${id} `).length > 0;
  }

  /**
   * Move what tabs that were closed have noted of a story to another one, whose page takes it.
   * @param {string} from
   * @param {string} to
   * @param {Map<string, string>} ids of nodes, old to new
   */
  moveNotes(from, to, ids) {
    for (const name of localNames(`${LEFT} ${from} `)) {
      const { drafts, ...note } = loadLocal(name);
      const moved = drafts.map(([place, ...noted]) => [ids.get(place) ?? ROOT, ...noted]);
      saveLocal(name.replace(from, to), { ...note, own: undefined, time: 0, drafts: moved });
      saveLocal(name, undefined);
    }
  }

  /** Return a noted draft after what has been stored since, and the changes that make it of that. */
  #noted(id, { drafts }, place, [draft, changes, version]) {
    if (!changes) return { draft };
    const stored = this.#bases.get(String([id, place])) ?? {};
    const { text } = drafts.shown(place, stored);
    const made = repeated(text, ChangeSet.fromJSON(changes), composed(changesSince({ version }, stored)));
    return { draft: { ...draft, text: applied(text, made), log: [[stored.version ?? "", made]] }, made };
  }

  /**
   * Return the changes of a draft that the server doesn't have; null stands for unknown ones.
   * @param {string} id
   * @param {Replica} replica
   * @param {string} place
   */
  unsent(id, { drafts }, place) {
    return [this.#bases.get(String([id, place]))?.unsent, ...drafts.typed(place)];
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

export const TRASH_MILLISECONDS = 30 * 24 * 3600 * 1000;

const STORES = ["stories", "nodes", "page"];

const isFull = (error) => error?.name === "QuotaExceededError";

/** Stories in the browser's IndexedDB, with a record per node and draft, so that only changes are written. */
export class BrowserStories extends Stories {
  /**
   * Open the database.
   * @throws {DOMException} if the browser stores nothing, as in some private windows
   */
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
    this.removed = new Set(); // ids of deleted stories
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

  store(story) {
    return new BrowserStore(story, this);
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
    this.know(id, page);
    for (const [place, draft] of drafts) this.know([id, place], draft);
    return { page: { ...page, ...this.ownNote(id)?.own }, drafts };
  }

  async keep(id, page, drafts) {
    await this.transact([], () => [[id, page], ...drafts.map(([place, draft]) => [[id, place], draft])]);
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

  async exchange(id, replica, what) {
    if (this.removed.has(id)) return null;
    const places = await super.exchange(id, replica, what);
    const { words } = replica.own;
    const isNew = what.nodes?.length || places?.length;
    if (isNew || words !== this.words) this.#update(id, () => ({ words, ...(isNew && { changed: Date.now() }) })).catch(() => {}); // only the list depends on it
    this.words = words;
    if (places) this.tabs.postMessage({ id, places, nodes: (what.nodes ?? []).map((node) => node.id) });
    return places;
  }

  follow(id, listener, replica) {
    const [places, nodes] = [new Set(), new Set()];
    let isAsked = false;
    /** @type {Promise<void> | null} */
    let reading = null;
    const read = async () => {
      while (isAsked) {
        isAsked = false;
        const [asked, ids] = [places, nodes].map((all) => [...all]);
        for (const all of [places, nodes]) all.clear();
        const { nodes: stored } = this.#stores("readonly");
        for (const node of await Promise.all(ids.map((each) => finished(stored.get(each))))) if (node) listener.changed(node);
        await this.exchange(id, replica, { places: asked });
      }
    };
    const readSoon = (news) => {
      for (const each of news.places) places.add(each);
      for (const each of news.nodes) nodes.add(each);
      isAsked = true;
      reading ??= read().catch(() => {}).finally(() => (reading = null));
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
    // A page that was frozen may have missed messages.
    addEventListener("focus", async () => {
      const { page } = this.#stores("readonly");
      const keys = await finished(page.getAllKeys(allOf(id)));
      await this.takeLeft(id, replica);
      readSoon({ places: keys.flatMap(([, place, ...others]) => (others.length ? [] : [place])), nodes: [] });
    });
  }

  #stores(mode) {
    const transaction = this.database.transaction(STORES, mode);
    return Object.fromEntries(STORES.map((name) => [name, transaction.objectStore(name)]));
  }

  /** Change the object stores in one transaction, until `commit` is called: the page may be closing. */
  write(change) {
    const stores = this.#stores("readwrite");
    const { transaction } = stores.page;
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

class BrowserStore extends Store {
  async load() {
    const [nodes, said] = await Promise.all([this.stories.nodes(this.story), this.stories.page(this.story.id)]);
    return { nodes, ...said };
  }

  async add(fields) {
    if (!this.story.title) await this.name(suggestTitle(fields));
    return fields;
  }

  begin(replica) {
    this.replica = replica;
    return this.stories.begin(this.story.id, replica);
  }

  async save(nodes, places) {
    const { id } = this.story;
    await this.stories.exchange(id, this.replica, { places, own: () => this.replica.own, nodes: this.#own(nodes) });
  }

  leave(nodes) {
    this.stories.note(this.story.id, this.replica, this.replica.own, { isLast: true });
    if (nodes.length) this.stories.transact([], () => [], this.#own(nodes)).catch(() => {});
  }

  #own(nodes) {
    return nodes.map((node) => ({ ...node, story: this.story.id }));
  }

  async watch(listener) {
    this.listener = listener;
    const renamed = (story) => listener.renamed((this.story = { ...this.story, ...story }));
    this.stories.follow(this.story.id, { ...listener, renamed }, this.replica);
    await this.save([], []); // the list shows its words
  }
}
