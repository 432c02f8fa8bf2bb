// A story on a server that fails: story_store.js, on a fetch of its own.

import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { ServerStories } from "../../srb/web/story/server_store.js";

const NODE = { id: 1, parent: null, text: "Once", tokens: [1], author: "model", request: "r", index: 0, kept: null, ends_at: null, notes: null, finish_reason: "stop", stop_reason: null, created: 1 };

let server, pages, error;

globalThis.sessionStorage = { getItem: () => null };
globalThis.document = { querySelector: (selector) => (selector === "#error-text" ? error : {}) };
globalThis.fetch = async (path, { method = "GET", body } = {}) => {
  if (method !== "GET" && server.isDown) throw new TypeError("no network");
  if (method === "PATCH") {
    server.patches.push(JSON.parse(body));
    Object.assign(server.node, JSON.parse(body));
  }
  if (method === "POST" && path.endsWith("/nodes")) return Response.json(server.node);
  if (method === "GET" && path.endsWith("/nodes")) return new Response(server.events.map((event) => `data: ${JSON.stringify(event)}\n\n`).join(""));
  if (path.startsWith("v1/history?")) return Response.json(server.search(new URLSearchParams(path.split("?")[1])));
  if (path === "v1/stories") return Response.json({ data: [{ id: "s", title: "A tale" }, { id: "t", title: "Another" }] });
  return Response.json({ nodes: [server.node], change: 1, context: server.context });
};

beforeEach(() => {
  server = { node: { ...NODE }, patches: [], isDown: false };
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

test("the background is sent once after typing, and another device's later changes are shown", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const { store } = await open();
  for (const memory of ["Ada", MEMORY.memory]) await store.save([], { beside: { ...MEMORY, memory } }, []);
  assert.equal(typeof pages.page.unsent.root.context, "string");
  t.mock.timers.tick(1000);
  await new Promise(setImmediate);
  assert.deepEqual(server.patches, [{ context: MEMORY }]);
  assert.deepEqual(pages.page.unsent, {});
  const heard = [];
  const listener = { renamed: () => {}, background: ({ memory }) => heard.push(memory), deleted: () => {} };
  const told = (memory) => ({ event: "story", story: { id: "s", title: "A tale", context: { ...MEMORY, memory } } });
  await store.save([], { beside: MEMORY }, []);
  server.events = [told(MEMORY.memory), told("She limps."), { event: "deleted" }];
  await store.watch(listener);
  assert.deepEqual(heard, ["She limps."]);
});

test("an unsent background isn't overwritten, and is sent when the page is opened again", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const { store } = await open();
  server.isDown = true;
  await store.save([], { beside: MEMORY }, []);
  t.mock.timers.tick(1000);
  await new Promise(setImmediate);
  assert.match(error.textContent, /isn't saved yet/);
  Object.assign(server, { isDown: false, context: { memory: "of another device" } });
  const { store: later } = await open();
  assert.equal(later.page.beside.memory, MEMORY.memory);
  server.events = [{ event: "deleted" }];
  await later.watch({ deleted: () => {} });
  await new Promise(setImmediate);
  assert.deepEqual(server.patches, [{ context: MEMORY }]);
  assert.equal((await open()).store.page.beside.memory, "of another device");
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
