// A story on a server that fails: story_store.js, on a fetch of its own.

import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { ServerStories } from "../../srb/web/story/server_store.js";

const NODE = { id: 1, parent: null, text: "Once", tokens: [1], author: "model", request: "r", index: 0, kept: null, ends_at: null, notes: null, finish_reason: "stop", stop_reason: null, created: 1 };

let server, pages, error;

globalThis.addEventListener = globalThis.removeEventListener = () => {};
globalThis.sessionStorage = { getItem: () => null };
globalThis.WebSocket = class { // behind a proxy that lets none through
  constructor() { queueMicrotask(() => this.onclose()); }
  close() {}
};
globalThis.document = { documentElement: { style: {} }, querySelector: (selector) => (selector === "#error-text" ? error : {}) };
globalThis.fetch = async (path, { method = "GET", body, headers = undefined } = {}) => {
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

beforeEach(() => {
  server = { node: { ...NODE }, patches: [], isDown: false, change: 1, events: [] };
  pages = { page: {}, drafts: [] };
  error = { textContent: "" };
});

async function open() {
  const browser = { page: async () => structuredClone(pages), savePage: async (_id, page) => (pages = { page, drafts: [] }), follow() {} };
  const store = new ServerStories(browser).store({ id: "s", title: "A tale" });
  const pauses = [];
  store.sending.later = (again) => pauses.push(again);
  const { nodes } = await store.load();
  return { store, node: nodes[0], pauses, again: () => pauses.shift()() };
}

test("a mark that the server didn't get is reported, stored and sent again", async () => {
  const { store, node, again } = await open();
  server.isDown = true;
  node.kept = true;
  await store.save([node], { note: "n" }, []);
  assert.match(error.textContent, /isn't saved yet.* The server can't be reached/);
  assert.deepEqual([pages.page.note, pages.page.unsent], ["n", { 1: { kept: true, ends_at: null, notes: null } }]);
  server.isDown = false;
  await again();
  assert.deepEqual(server.patches, [{ kept: true }]);
  assert.deepEqual(pages.page.unsent, {});
});

test("it survives a reload, and is sent then", async () => {
  const { store, node } = await open();
  server.isDown = true;
  node.discarded = true;
  await store.save([node], {}, []);
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
  await store.save([node], {}, []);
  server.node.text = "Once upon a time";
  const { nodes } = await store.load();
  assert.deepEqual([nodes[0].endsAt, nodes[0].pieces], [2, [{ text: "On", ids: null }]]);
});

test("a change that is undone before it was sent is never sent", async () => {
  const { store, node, again } = await open();
  server.isDown = true;
  node.kept = true;
  await store.save([node], {}, []);
  node.kept = false;
  await store.save([node], {}, []);
  server.isDown = false;
  await again();
  assert.deepEqual(server.patches, []);
  assert.equal(store.unsent.size, 0);
});

test("marks arrive in order", async () => {
  const { store, node } = await open();
  const marks = [true, false, true, false].map((kept) => {
    node.kept = kept;
    return store.save([node], {}, []);
  });
  await Promise.all(marks);
  assert.equal(server.node.kept, null);
});

const MEMORY = { memory: "Ada is ninety.", note: "", depth: 3, lore: [] };

/** Let a time pass, and all that follows from it. */
async function pass(t, milliseconds) {
  t.mock.timers.tick(milliseconds);
  for (let k = 0; k < 3; k++) await new Promise(setImmediate);
}

/** Watch a story, and return what is heard of its background. */
function listen(store) {
  const heard = [];
  store.watch({ renamed: () => {}, background: (values) => heard.push(values), deleted: () => {}, restored: () => heard.push("restored") });
  return heard;
}

test("the background is sent once after typing, and another device's later changes are shown", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const { store } = await open();
  for (const memory of ["Ada", MEMORY.memory]) await store.save([], { beside: { ...MEMORY, memory } }, []);
  assert.equal(pages.page.beside.memory, MEMORY.memory);
  await pass(t, 1000);
  assert.deepEqual(server.patches, [{ context: MEMORY }]);
  assert.deepEqual([pages.page.context.known, pages.page.unsent], [MEMORY, {}]);
  const told = (memory, change) => ({ event: "story", story: { id: "s", title: "A tale", context: { ...MEMORY, memory }, change } });
  server.events = [told(MEMORY.memory, 2), told("She limps.", 3), { event: "deleted" }];
  const heard = listen(store);
  await pass(t, 0);
  assert.deepEqual(heard.map(({ memory }) => memory), ["She limps."]);
});

test("what two devices have changed of the background is merged, and both texts stand if both have changed one", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  server.context = MEMORY;
  const { store } = await open();
  const heard = listen(store);
  const other = (values) => Object.assign(server, { context: { ...MEMORY, ...values }, change: server.change + 1 });
  other({ note: "Night is falling." });
  await store.save([], { ...store.page, beside: { ...MEMORY, memory: "Ada is eighty." } }, []);
  await pass(t, 1000);
  const both = { ...MEMORY, note: "Night is falling.", memory: "Ada is eighty." };
  assert.deepEqual([server.context, store.page.beside, pages.page.beside], [both, both, both]);
  assert.deepEqual(heard, [both]);
  other({ ...both, memory: "She is a hundred." });
  await store.save([], { ...store.page, beside: { ...both, memory: "She is one." } }, []);
  await pass(t, 1000);
  assert.deepEqual(server.context, { ...both, memory: "She is one.", versions: [{ name: "memory", text: "She is a hundred." }] });
});

test("a background that was changed without the server is merged when the page is opened again", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  server.context = MEMORY;
  const { store } = await open();
  server.isDown = true;
  await store.save([], { ...store.page, beside: { ...MEMORY, memory: "Ada is eighty.", depth: 5 } }, []);
  await pass(t, 1000);
  assert.match(error.textContent, /isn't saved yet/);
  Object.assign(server, { isDown: false, change: 7, context: { ...MEMORY, memory: "Ada has died.", note: "Day." } });
  const { store: later } = await open();
  const versions = [{ name: "memory", text: "Ada has died." }];
  const both = { ...MEMORY, memory: "Ada is eighty.", note: "Day.", depth: 5, versions };
  assert.deepEqual(later.page.beside, both);
  listen(later);
  await pass(t, 0);
  assert.deepEqual(server.context, both);
  assert.deepEqual((await open()).store.page.beside, both);
});

test("what this device has sent before its browser was killed isn't another version", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  server.context = MEMORY;
  const { store } = await open();
  await store.save([], { ...store.page, beside: { ...MEMORY, memory: "Ada is eigthy." } }, []);
  const answer = Response.json;
  Response.json = () => new Promise(() => {}); // it never comes
  await pass(t, 1000);
  Response.json = answer;
  assert.equal(server.context.memory, "Ada is eigthy.");
  await store.save([], { ...store.page, beside: { ...MEMORY, memory: "Ada is eighty." } }, []);
  const { store: later } = await open();
  assert.deepEqual(later.page.beside, { ...MEMORY, memory: "Ada is eighty." });
});

test("what was changed while the story was in the trash is sent when it is restored", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const { store, node } = await open();
  server.events = [{ event: "deleted" }];
  const heard = listen(store);
  await pass(t, 0);
  const fetched = globalThis.fetch;
  globalThis.fetch = async () => Response.json({ error: { message: "there is no story s" } }, { status: 404 });
  node.kept = true;
  await store.save([node], { ...store.page, beside: MEMORY }, []);
  await pass(t, 6000);
  assert.deepEqual([server.patches, heard], [[], []]);
  globalThis.fetch = fetched;
  server.events = [];
  await pass(t, 5000);
  await pass(t, 1000);
  assert.deepEqual(heard, ["restored"]);
  assert.deepEqual(server.patches, [{ kept: true }, { context: MEMORY }]);
});

test("a full browser doesn't keep memory and marks from the server", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const { store, node } = await open();
  store.all.browser.savePage = () => Promise.reject(new Error("full"));
  node.kept = true;
  await assert.rejects(store.save([node], { ...store.page, beside: MEMORY }, []), { message: "full", isCopy: true });
  await pass(t, 1000);
  assert.deepEqual(server.patches, [{ kept: true }, { context: MEMORY }]);
});

test("a name that another device has given isn't replaced by the draft's", async () => {
  const { store } = await open();
  store.story = { id: "s", title: "", change: 1 };
  const fetched = globalThis.fetch;
  const sent = [];
  globalThis.fetch = async (path, { method = "GET", body } = {}) => {
    if (path !== "v1/stories/s") return fetched(path, { method, body });
    if (method !== "PATCH") return Response.json({ title: "The keeper", change: 4 });
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
  const browser = { page: async (id) => ({ page: {}, drafts: [["4", `the lamplight of ${id}`]] }) };
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

test("a draft is sent after a pause, and one that another device has changed is kept, too", async (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const { store } = await open();
  const heard = [];
  store.listener = { saved: (drafts) => heard.push(["saved", drafts]), split: (...split) => heard.push(["split", ...split]), knows: (_place, text) => text === "Onc" };
  const puts = [];
  const fetched = globalThis.fetch;
  const draft = (text, change) => ({ node: 0, text, metadata: null, change });
  let current = null;
  globalThis.fetch = async (path, options = {}) => {
    if (!path.endsWith("/drafts/0")) return fetched(path, options);
    if (options.method !== "PUT") return Response.json(current);
    const body = JSON.parse(options.body);
    puts.push([body.text, body.since]);
    if (current && body.since < current.change) return Response.json({ error: { message: "changed" } }, { status: 409 });
    return Response.json((current = draft(body.text, 5 + puts.length)));
  };
  context.after(() => (globalThis.fetch = fetched));
  const rest = async () => {
    context.mock.timers.tick(1000);
    await new Promise(setImmediate);
    await store.typed;
  };
  await store.save([], {}, [["root", "Onc"]]);
  await store.save([], {}, [["root", "Once"]]);
  assert.deepEqual(puts, []);
  assert.deepEqual(pages.page.unsentDrafts, { root: 0 });
  await rest();
  assert.deepEqual(puts, [["Once", 0]]);
  assert.deepEqual(pages.page.unsentDrafts, {});
  current = draft("Twice", 9); // by another device, whose report hasn't come yet
  await store.save([], {}, [["root", "Once upon"]]);
  await rest();
  assert.deepEqual(puts.at(-1), ["Once upon", 6]);
  assert.deepEqual(heard, [["split", "root", "Twice", undefined]]);
  await store.save([], {}, [["root", "Twice"]]); // as the desk does then
  assert.deepEqual(pages.page.unsentDrafts, {});
});

test("a story keeps the name of its beginning when another text is typed, though its draft has that name, too", async () => {
  const { store } = await open();
  const names = [];
  store.all.rename = async (story, title) => (names.push(title), { ...story, title });
  store.suggested = store.story.title;
  await store.add({ parent: "1", pieces: [{ text: "He went up." }] });
  assert.deepEqual([names, store.story.title], [[], "A tale"]);
});

test("a draft that was sent before the browser was killed isn't another text, and undo goes on in one of another device", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const fetched = globalThis.fetch;
  t.after(() => (globalThis.fetch = fetched));
  const drafts = [{ node: 0, text: "Once", metadata: null, change: 3 }, { node: 1, text: "So: Twice upon", metadata: null, change: 4 }];
  globalThis.fetch = async (path, options) => (path === "v1/stories/s" ? Response.json({ nodes: [server.node], change: 4, drafts }) : fetched(path, options));
  const step = { kind: "text", place: "1", changes: [5, [5]], marks: "" };
  pages = { page: { unsentDrafts: { root: 1 }, steps: { done: [step], undone: [] } }, drafts: [["root", "Once upon"], ["1", "Twice upon"]] };
  const { store } = await open();
  assert.deepEqual([store.splits, [...store.unsentDrafts]], [[], [["root", 3]]]);
  assert.deepEqual([store.texts.get("1"), store.page.steps.done[0].changes], ["So: Twice upon", [9, [5]]]);
});
