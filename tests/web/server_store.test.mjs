// A story on a server that fails: story_store.js, on a fetch of its own.

import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { Stories } from "../../srb/web/story/browser_store.js";
import { Drafts } from "../../srb/web/story/drafts.js";
import { readBackground } from "../../srb/web/story/lorebook.js";
import { merge } from "../../srb/web/story/merging.js";
import { ServerStories } from "../../srb/web/story/server_store.js";

const NODE = { id: 1, parent: null, text: "Once", tokens: [1], author: "model", request: "r", index: 0, kept: null, ends_at: null, notes: null, finish_reason: "stop", stop_reason: null, created: 1 };

let server, values, error;

globalThis.addEventListener = globalThis.removeEventListener = () => {};
globalThis.WebSocket = class { // behind a proxy that lets none through
  constructor() { queueMicrotask(() => this.onclose()); }
  close() {}
};
const serve = async (path, { method = "GET", body, headers = undefined } = {}) => {
  if (method !== "GET" && server.isDown) throw new TypeError("no network");
  if (method === "PATCH" && path.endsWith("/s")) {
    const { since, ...changes } = JSON.parse(body);
    if (since < server.change && changes.context) return Response.json({ error: { message: "changed" } }, { status: 409 });
    server.patches.push(changes);
    return Response.json({ ...Object.assign(server, changes), change: ++server.change });
  }
  if (method === "PATCH") {
    server.patches.push(JSON.parse(body));
    Object.assign(server.node, JSON.parse(body));
  }
  if (method === "POST" && path.endsWith("/nodes")) return Response.json(server.node);
  if (headers?.Accept === "text/event-stream") return new Response(server.events.map((event) => `data: ${JSON.stringify(event)}\n\n`).join(""));
  if (path.startsWith("v1/history?")) return Response.json(server.search(new URLSearchParams(path.split("?")[1])));
  if (path === "v1/stories") return Response.json({ data: [{ id: "s", title: "A tale" }, { id: "t", title: "Another" }] });
  return Response.json({ nodes: [server.node], change: server.change, context: server.context });
};

beforeEach(() => { // tests of other files, in the same process, have others
  globalThis.fetch = serve;
  globalThis.sessionStorage = globalThis.localStorage = { getItem: () => null, setItem() {}, removeItem() {} };
  globalThis.document = { documentElement: { style: {} }, querySelector: (selector) => (selector === "#error-text" ? error : {}) };
  server = { node: { ...NODE }, patches: [], isDown: false, change: 1, events: [] };
  values = new Map();
  error = { textContent: "" };
});

/** A browser that stores `values`. */
class Browser extends Stories {
  constructor(stored = values) {
    super();
    this.values = stored;
    this.isFull = false;
  }

  async page(id) {
    const stored = [...this.values].map(([key, value]) => [key.split(","), structuredClone(value)]);
    const drafts = stored.filter(([key]) => key.length === 2).map(([[, place], draft]) => [place, draft]);
    return { page: structuredClone(this.values.get(id) ?? {}), drafts };
  }

  async transact(keys, change) {
    const puts = change(keys.map((key) => structuredClone(this.values.get(String(key)))));
    if (this.isFull) throw new Error("full");
    for (const [key, value] of structuredClone(puts)) this.values.set(String(key), value);
  }
}

/** What a page has of the story. */
class Page {
  constructor({ drafts = [], page = {}, nodes = [] }) {
    this.drafts = new Drafts(drafts);
    this.shared = { beside: page.beside ?? readBackground({}) };
    this.own = { current: page.current ?? "root", shown: page.shown ?? ["root"] };
    this.tree = new Map(nodes.map((node) => [node.id, node]));
  }

  meet(base, theirs) {
    if (theirs.beside) this.shared = { beside: merge(readBackground(base.beside ?? {}), this.shared.beside, theirs.beside) };
  }

  meetDraft(...draft) {
    this.drafts.meet(...draft);
  }
}

async function open(browser = new Browser()) {
  const store = new ServerStories(browser).store({ id: "s", title: "A tale" });
  const pauses = [];
  store.sending.later = (again) => pauses.push(again);
  const loaded = await store.load();
  const page = new Page(loaded);
  await store.begin(page);
  return { store, page, browser, node: loaded.nodes[0], pauses, again: () => pauses.shift()() };
}

test("a mark that the server didn't get is reported, stored and sent again", async () => {
  const { store, node, again } = await open();
  server.isDown = true;
  node.kept = true;
  await store.save([node], [], false);
  assert.match(error.textContent, /isn't saved yet.* The server can't be reached/);
  assert.deepEqual(values.get("s").unsent, { 1: { kept: true, ends_at: null, notes: null } });
  server.isDown = false;
  await again();
  assert.deepEqual(server.patches, [{ kept: true }]);
  assert.deepEqual(values.get("s").unsent, {});
});

test("it survives a reload, and is sent then", async () => {
  const { store, node } = await open();
  server.isDown = true;
  node.discarded = true;
  await store.save([node], [], false);
  server.isDown = false;
  const { store: later, node: known } = await open();
  assert.equal(known.discarded, true);
  await later.sending.save(...later.unsent.keys());
  assert.equal(server.node.kept, false);
});

test("a cut text stays cut while the server doesn't know it", async () => {
  const { store, node } = await open();
  server.isDown = true;
  node.endsAt = 2;
  await store.save([node], [], false);
  server.node.text = "Once upon a time";
  const { nodes } = await store.load();
  assert.deepEqual([nodes[0].endsAt, nodes[0].pieces], [2, [{ text: "On", ids: null }]]);
});

test("a change that is undone before it was sent is never sent", async () => {
  const { store, node, again } = await open();
  server.isDown = true;
  node.kept = true;
  await store.save([node], [], false);
  node.kept = false;
  await store.save([node], [], false);
  server.isDown = false;
  await again();
  assert.deepEqual(server.patches, []);
  assert.equal(store.unsent.size, 0);
});

test("marks arrive in order", async () => {
  const { store, node } = await open();
  const marks = [true, false, true, false].map((kept) => {
    node.kept = kept;
    return store.save([node], [], false);
  });
  await Promise.all(marks);
  assert.equal(server.node.kept, null);
});

const MEMORY = { memory: "Ada is ninety.", note: "", depth: 3, lore: [] };

/** Let a time pass, and all that follows from it. */
async function pass(t, milliseconds) {
  t.mock.timers.tick(milliseconds);
  for (let k = 0; k < 8; k++) await new Promise(setImmediate);
}

/** Watch a story, and return what is heard. */
function listen(store) {
  const heard = [];
  store.watch({ changed: () => {}, renamed: () => {}, moved: () => {}, deleted: () => {}, restored: () => heard.push("restored") });
  return heard;
}

test("the background is sent once after typing, and another device's later changes are shown", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const { store, page } = await open();
  for (const memory of ["Ada", MEMORY.memory]) {
    page.shared = { beside: { ...MEMORY, memory } };
    await store.save([], [], false);
  }
  assert.equal(values.get("s").beside.memory, MEMORY.memory);
  await pass(t, 1000);
  assert.deepEqual(server.patches.map(({ context }) => readBackground(context)), [MEMORY]);
  const told = (memory, change) => ({ event: "story", story: { id: "s", title: "A tale", context: { ...MEMORY, memory }, change } });
  server.events = [told("She limps.", 3), { event: "deleted" }];
  listen(store);
  await pass(t, 0);
  assert.equal(page.shared.beside.memory, "She limps.");
});

test("a background that was changed without the server is merged when the page is opened again", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  server.context = MEMORY;
  const { store, page } = await open();
  server.isDown = true;
  page.shared = { beside: { ...MEMORY, memory: "Ada, the keeper, is ninety.", depth: 5 } };
  await store.save([], [], false);
  await pass(t, 1000);
  assert.match(error.textContent, /isn't saved on the server yet/);
  Object.assign(server, { isDown: false, change: 7, context: { ...MEMORY, memory: "Ada is a hundred.", note: "Day." } });
  const later = await open();
  const both = { ...MEMORY, memory: "Ada, the keeper, is a hundred.", note: "Day.", depth: 5 };
  assert.deepEqual(later.page.shared.beside, both);
  listen(later.store);
  await pass(t, 1000);
  const context = readBackground(server.context);
  assert.deepEqual(context, both);
});

test("a background that the page of srb 0.1.0 couldn't send is sent, and holds up no mark", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  server.context = { ...MEMORY, memory: "", note: "Day." };
  values.set("s", { beside: MEMORY, unsent: { 1: { kept: true, ends_at: null, notes: null }, root: { context: JSON.stringify(MEMORY) } } });
  const { store, page } = await open();
  listen(store);
  await pass(t, 1000);
  assert.deepEqual([server.node.kept, error.textContent], [true, ""]);
  const both = { ...MEMORY, note: "Day." };
  assert.deepEqual([page.shared.beside, readBackground(server.context)], [both, both]);
});

test("what was changed while the story was in the trash is sent when it is restored", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const { store, page, node } = await open();
  server.events = [{ event: "deleted" }];
  const heard = listen(store);
  await pass(t, 0);
  const fetched = globalThis.fetch;
  globalThis.fetch = async () => Response.json({ error: { message: "there is no story s" } }, { status: 404 });
  node.kept = true;
  page.shared = { beside: MEMORY };
  await store.save([node], [], false);
  await pass(t, 6000);
  assert.deepEqual([server.patches, heard], [[], []]);
  globalThis.fetch = fetched;
  server.events = [];
  await pass(t, 5000);
  await pass(t, 1000);
  assert.deepEqual(heard, ["restored"]);
  assert.deepEqual(server.patches.map(({ kept, context }) => kept ?? context?.memory).sort(), [MEMORY.memory, true]);
});

test("a full browser doesn't keep memory and marks from the server", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const { store, page, browser, node } = await open();
  browser.isFull = true;
  node.kept = true;
  page.shared = { beside: MEMORY };
  await assert.rejects(store.save([node], [], false), { message: "full", isCopy: true });
  await pass(t, 1000);
  assert.deepEqual(server.patches.map(({ kept, context }) => kept ?? context?.memory).filter(Boolean), [true, MEMORY.memory]);
});

test("a place that the server reports late doesn't move the writer back", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const { store, page } = await open();
  const [fetched, moved] = [globalThis.fetch, []];
  t.after(() => (globalThis.fetch = fetched));
  let stream, answering, answer;
  const hold = () => (answering = new Promise((resolve) => (answer = resolve)));
  globalThis.fetch = async (path, options = {}) => {
    if (options.headers?.Accept) return new Response(new ReadableStream({ start: (controller) => (stream = controller) }));
    const response = await fetched(path, options);
    await answering;
    return response;
  };
  const tell = async (current, change) => {
    const story = { id: "s", title: "A tale", place: { current, shown: [current] }, change };
    stream.enqueue(new TextEncoder().encode(`data: ${JSON.stringify({ event: "story", story })}\n\n`));
    await pass(t, 0);
  };
  const go = async (current) => {
    page.own = { current, shown: [current] };
    await store.save([], [], false);
    await pass(t, 0);
  };
  store.watch({ changed: () => {}, renamed: () => {}, moved: ({ current }) => moved.push(current) });
  await pass(t, 0);
  await go("1");
  hold();
  await go("2");
  await tell("1", server.change - 1); // while the answer is on its way
  answer();
  await pass(t, 0);
  await tell("1", server.change - 1);
  assert.deepEqual(moved, []);
  hold();
  await go("4");
  await tell("3", server.change + 1); // by another device, after this one's
  answer();
  await pass(t, 0);
  assert.deepEqual(moved, ["3"]);
});

test("a name that another device has given isn't replaced by the draft's", async () => {
  const { store } = await open();
  store.story = { id: "s", title: "", change: 1 };
  const fetched = globalThis.fetch;
  const sent = [];
  globalThis.fetch = async (path, { method = "GET", body } = {}) => {
    if (path === "v1/stories") return Response.json({ data: [{ id: "s", title: "The keeper", change: 4 }] });
    if (path !== "v1/stories/s") return fetched(path, { method, body });
    sent.push(JSON.parse(body));
    return Response.json({ error: { message: "changed" } }, { status: 409 });
  };
  await store.add({ parent: "1", pieces: [{ text: "He went up." }] }).finally(() => (globalThis.fetch = fetched));
  assert.deepEqual([sent, store.story.title], [[{ title: "He went up.", since: 1 }], "The keeper"]);
});

test("the server searches other stories part by part, and the page searches drafts", async () => {
  const asked = [];
  const found = (story, node, snippet) => ({ request: null, index: null, story, node, created: 1, snippet });
  server.search = (query) => {
    asked.push(Object.fromEntries(query));
    if (query.has("before")) return { data: [found("t", 3, "and the lamp burned")], before: null };
    return { data: [found("s", 1, "the lamp here"), found(null, null, "the lamp of a request"), found("t", 9, "the lamp")], before: 7 };
  };
  const browser = { page: async (id) => ({ page: {}, drafts: [["4", { text: `the lamplight of ${id}` }]] }) };
  const search = async (query) => {
    const all = [];
    for await (const { found } of new ServerStories(browser).find(query, { id: "s" })) all.push(...found);
    return all;
  };
  const all = (await search('the "lamp')).map(({ story, id, kind, before, match }) => [story.title, id, kind, before, match]);
  assert.deepEqual(all, [["Another", "9", undefined, "", "the lamp"], ["Another", "3", undefined, "and ", "the lamp"]], "as a draft has no such quote");
  assert.deepEqual(asked, [{ q: '"the  lamp"*', limit: "1000" }, { q: '"the  lamp"*', limit: "1000", before: "7" }]);
  const [draft] = await search("the lamp");
  assert.deepEqual([draft.story.id, draft.id, draft.kind, draft.match], ["t", "4", "draft", "the lamp"]);
});

/** A server of drafts that loses requests and answers: the first numbers of `random` decide. */
function serveDrafts(t, random) {
  const fetched = globalThis.fetch;
  t.after(() => (globalThis.fetch = fetched));
  let change = 1;
  const drafts = new Map();
  globalThis.fetch = async (path, options = {}) => {
    await new Promise(setImmediate);
    if (path === "v1/stories/s") return Response.json({ nodes: [server.node], change, drafts: [...drafts.values()] });
    const [, node] = /drafts\/(\d+)/.exec(path) ?? [];
    if (node === undefined) return fetched(path, options);
    if (!random(6)) throw new TypeError("lost request");
    const known = drafts.get(node);
    if (options.method !== "PUT") return Response.json(known);
    const { text, metadata, since } = JSON.parse(options.body);
    const isLate = (known?.change ?? 0) > since;
    if (!isLate) drafts.set(node, { node: Number(node), text, metadata, change: ++change });
    if (!random(6)) throw new TypeError("lost answer");
    return isLate ? Response.json({ error: { message: "changed" } }, { status: 409 }) : Response.json(drafts.get(node));
  };
  return drafts;
}

test("what devices type is all there, once, whatever the network loses and whichever browser is killed", async (t) => {
  for (let round = 1; round <= 4; round++) {
    let seed = round;
    const random = (below) => (seed = (seed * 48271) % 2147483647) % below;
    t.mock.timers.enable({ apis: ["setTimeout"] });
    let isLossy = true;
    const drafts = serveDrafts(t, (below) => (isLossy ? random(below) : 1));
    const stored = [new Map(), new Map(), new Map()];
    const open_ = async (k) => ({ ...(await open(new Browser(stored[k]))), k });
    const devices = await Promise.all(stored.map((_, k) => open_(k)));
    const typed = new Set();
    for (let k = 0; k < 80; k++) {
      const device = devices[random(3)];
      const { page, store } = device;
      const text = page.drafts.at("root") ?? "";
      const at = random(text.length + 1);
      const letter = random(4) || at === text.length ? String.fromCodePoint(0x4e00 + k) : "";
      if (letter) typed.add(letter);
      else typed.delete(text[at]);
      page.drafts.put("root", text.slice(0, at) + letter + text.slice(letter ? at : at + 1), () => "");
      await store.save([], ["root"], true).catch(() => {});
      if (!random(4)) await pass(t, 600);
      if (!random(15)) devices[device.k] = await open_(device.k); // it was killed
    }
    isLossy = false;
    await pass(t, 12_000); // what is tried again
    for (let k = 0; k < 6; k++) {
      devices[k % 3] = await open_(k % 3);
      await devices[k % 3].store.save([], ["root"], true);
      await pass(t, 3000);
    }
    const texts = devices.map(({ page }) => page.drafts.at("root"));
    assert.deepEqual(texts, Array(3).fill(drafts.get("0").text), `round ${round}`);
    assert.deepEqual([...texts[0]].sort().join(""), [...typed].join(""), `round ${round}`);
    t.mock.timers.reset();
  }
});

test("a story keeps the name of its beginning when another text is typed, though its draft has that name, too", async () => {
  const { store } = await open();
  const names = [];
  store.stories.rename = async (story, title) => (names.push(title), { ...story, title });
  store.suggested = store.story.title;
  await store.add({ parent: "1", pieces: [{ text: "He went up." }] });
  assert.deepEqual([names, store.story.title], [[], "A tale"]);
});
