// What tabs make of the same story: browser_store.js.

import assert from "node:assert/strict";
import { test as anyTest } from "node:test";
import { Store, Stories } from "../../srb/web/story/browser_store.js";
import { Drafts } from "../../srb/web/story/drafts.js";
import { merge } from "../../srb/web/story/merging.js";
import { Tree } from "../../srb/web/story/tree.js";

const local = new Map();
const ROOM = 1e6; // characters
const setItem = (all) => (name, value) => {
  if (value.length > ROOM) throw new Error("full");
  all.set(name, value);
};
const storage = (all) => new Proxy({ getItem: (name) => all.get(name) ?? null, setItem: setItem(all), removeItem: (name) => all.delete(name) }, {
  ownKeys: () => [...all.keys()],
  getOwnPropertyDescriptor: () => ({ enumerable: true, configurable: true }),
});
const OWN = { document: {}, localStorage: storage(local), sessionStorage: { getItem: () => null, setItem() {} } };

/** A test in this browser: tests of other files, in the same process, have others. */
const test = (name, run) =>
  anyTest(name, (t) => {
    Object.assign(globalThis, OWN);
    return run(t);
  });

/** A browser that stores `values`. */
class Browser extends Stories {
  constructor(values) {
    super();
    this.values = values;
    this.isFull = false;
  }

  async page(id) {
    const draft = this.values.get(`${id},root`);
    return { page: this.values.get(id) ?? {}, drafts: draft ? [["root", draft]] : [] };
  }

  async transact(keys, change) {
    await new Promise(setImmediate);
    const puts = change(keys.map((key) => structuredClone(this.values.get(String(key)))));
    if (this.isFull) throw new Error("full");
    for (const [key, value] of structuredClone(puts)) this.values.set(String(key), value);
  }
}

class Tab extends Store {
  drafts = new Drafts();
  shared = { beside: "" };

  constructor(values) {
    super({ id: "s", title: "" }, new Browser(values));
    const meet = (base, theirs) => {
      if (theirs.beside !== undefined) this.shared.beside = merge(base.beside ?? "", this.shared.beside, theirs.beside);
    };
    const meetDraft = (...draft) => this.drafts.meet(...draft);
    this.replica = { tree: new Tree(), drafts: this.drafts, shared: this.shared, own: { current: "root" }, meet, meetDraft };
  }

  type(change) {
    this.drafts.put("root", change(this.drafts.at("root") ?? ""), () => "");
  }

  save(nodes = [], places = ["root"]) {
    return this.exchange({ places, own: true, nodes });
  }

  follow() {
    return this.exchange({ places: ["root"] });
  }
}

test("what tabs type at once is all there, once, and tabs that only listen store nothing", async () => {
  const values = new Map();
  const tabs = [new Tab(values), new Tab(values), new Tab(values)];
  let seed = 3;
  const random = (below) => (seed = (seed * 16807) % 2147483647) % below;
  const saves = [];
  const typed = new Set();
  for (let k = 0; k < 200; k++) {
    const tab = tabs[random(3)];
    tab.type((text) => {
      const at = random(text.length + 1);
      const letter = random(4) || at === text.length ? String.fromCodePoint(0x4e00 + k) : "";
      if (letter) typed.add(letter);
      else typed.delete(text[at]);
      return text.slice(0, at) + letter + text.slice(letter ? at : at + 1);
    });
    if (random(3)) saves.push(tab.save().catch(() => {}));
    if (!random(4)) await new Promise(setImmediate);
    if (!random(20)) tab.local.isFull = !tab.local.isFull;
  }
  await Promise.all(saves);
  for (const tab of tabs) tab.local.isFull = false;
  for (const tab of tabs) await tab.save();
  for (const tab of tabs) assert.equal((await tab.follow()), null);
  const [text, ...others] = tabs.map((tab) => tab.drafts.at("root"));
  assert.deepEqual(others, [text, text]);
  assert.deepEqual([...text].sort().join(""), [...typed].join(""));
});

test("a page that is closed leaves what it hasn't stored, and it isn't doubled", async () => {
  const values = new Map();
  const [tab, other] = [new Tab(values), new Tab(values)];
  tab.type(() => "Once");
  await tab.save();
  await other.follow();
  tab.type((text) => `${text} upon`);
  tab.shared.beside = "Ada";
  tab.note(); // and it is closed
  const noted = [...local].map(([name, value]) => [name, JSON.stringify({ ...JSON.parse(value), time: 0 })]); // long ago
  local.clear();
  for (const [name, value] of noted) local.set(name, value);
  const next = new Tab(values);
  await next.follow();
  await next.takeLeft();
  assert.deepEqual([next.drafts.at("root"), next.shared.beside, local.size], ["Once upon", "Ada", 0]);
  for (const [name, value] of noted) local.set(name, value); // as if it had been closed just after it was stored
  next.type((text) => `${text} a time`);
  await next.save();
  const last = new Tab(values);
  await last.follow();
  await last.takeLeft();
  assert.equal(last.drafts.at("root"), "Once upon a time");
});

/** What a store makes of a transaction: it ends; it fails; the page is closed before it hears of it, or it is dropped. */
const ENDS = {
  good: (put) => put(),
  full: () => Promise.reject(new Error("full")),
  unheard: (put) => new Promise(put),
  dropped: () => new Promise(() => {}),
};

test("what is typed is all there, once, whatever becomes of what is stored when pages are closed or reloaded", async (t) => {
  for (let round = 1; round <= 60; round++) {
    let seed = round;
    const random = (below) => (seed = (seed * 48271) % 2147483647) % below;
    if (round % 2) t.mock.method(sessionStorage, "getItem", () => "t"); // reloaded
    local.clear();
    const values = new Map();
    let end = ENDS.good;
    const open = async () => {
      const tab = new Tab(values);
      tab.local.transact = async (keys, change) => {
        const ending = end;
        await new Promise(setImmediate);
        const puts = structuredClone(change(keys.map((key) => structuredClone(values.get(String(key))))));
        await new Promise(setImmediate);
        const put = () => puts.forEach(([key, value]) => values.set(String(key), value));
        await (tab.isClosed ? ENDS.dropped() : ending(put));
      };
      const { page, drafts } = await tab.load();
      tab.drafts = tab.replica.drafts = new Drafts(drafts);
      tab.shared.beside = page.beside ?? "";
      await tab.begin(tab.replica);
      return tab;
    };
    const close = (tab) => {
      tab.leave([]);
      Object.assign(tab, { isClosed: true, note() {} });
      for (const [name, noted] of local) local.set(name, JSON.stringify({ ...JSON.parse(noted), time: 0 })); // long ago
    };
    let tab = await open();
    const typed = { text: new Set(), note: "" };
    for (let k = 0; k < 60; k++) {
      const letter = String.fromCodePoint(0x4e00 + k);
      if (!random(4)) typed.note = tab.shared.beside += letter;
      else
        tab.type((text) => {
          const at = random(text.length + 1);
          const isNew = random(4) || at === text.length;
          if (isNew) typed.text.add(letter);
          else typed.text.delete(text[at]);
          return text.slice(0, at) + (isNew ? letter : "") + text.slice(isNew ? at : at + 1);
        });
      if (random(3)) tab.save().catch(() => {});
      for (let wait = random(6); wait > 1; wait--) await new Promise(setImmediate);
      if (!random(8)) end = Object.values(ENDS)[random(4)];
      if (random(10)) continue;
      close(tab);
      end = random(3) ? ENDS.good : ENDS.full;
      tab = await open();
    }
    close(tab);
    end = ENDS.good;
    tab = await open();
    assert.deepEqual([[...(tab.drafts.at("root") ?? "")].sort(), tab.shared.beside], [[...typed.text].sort(), typed.note], `round ${round}`);
    t.mock.restoreAll();
  }
});

test("what a page has left comes once, also while the browser is full", async () => {
  local.clear();
  const values = new Map();
  const tab = new Tab(values);
  tab.type(() => "Once");
  tab.shared.beside = "Ada";
  tab.leave([]);
  for (let round = 0; round < 3; round++) {
    for (const [name, noted] of local) local.set(name, JSON.stringify({ ...JSON.parse(noted), time: 0 })); // long ago
    const next = new Tab(values);
    next.local.isFull = round < 2;
    await next.load();
    await next.begin(next.replica);
    await next.takeLeft(); // as when it gets the focus
    assert.deepEqual([next.drafts.at("root"), next.shared.beside], ["Once", "Ada"]);
    next.leave([]);
  }
  assert.deepEqual([values.get("s,root").text, values.get("s").beside, local.size], ["Once", "Ada", 0]);
});

test("a page that is reloaded knows which node its text has become", async (t) => {
  t.mock.method(sessionStorage, "getItem", () => "t");
  local.clear();
  const values = new Map();
  const tab = new Tab(values);
  tab.type(() => "Once");
  await tab.save();
  tab.drafts.settle("root", "Once", "a");
  tab.note();
  const next = new Tab(values);
  const { drafts } = await next.load();
  next.replica.drafts = new Drafts(drafts, (place) => ({ text: place === "a" ? "Once" : "", marks: "" }));
  await next.begin(next.replica);
  assert.equal(values.get("s,root").into, "a");
});

test("a page that is closed leaves the nodes that it hasn't stored", async () => {
  const node = { id: "a", parent: "root", pieces: [{ text: "Once", ids: null }] };
  local.clear();
  const values = new Map();
  const tab = new Tab(values);
  tab.local.isFull = true;
  await assert.rejects(tab.save([node], []));
  tab.leave([{ ...node, id: "b" }]);
  const next = new Tab(values);
  const { nodes } = await next.load();
  assert.deepEqual(nodes.map(({ id }) => id), ["a", "b"]);
  const [[name, noted]] = [...local];
  local.set(name, JSON.stringify({ ...JSON.parse(noted), time: 0 })); // long ago
  const heard = [];
  next.listener = { changed: ({ id }) => heard.push(id) };
  const stored = [];
  next.local.transact = async (keys, change, added) => {
    change(keys.map(() => undefined));
    stored.push(...added.map(({ id }) => id));
  };
  await next.takeLeft();
  assert.deepEqual([heard, stored, local.size], [["a", "b"], ["a", "b"], 0]);
});

test("a page that is closed leaves its draft also if there is no room for nodes", async () => {
  local.clear();
  const tab = new Tab(new Map());
  tab.type(() => "Once");
  tab.leave([{ id: "a", parent: "root", pieces: [{ text: "x".repeat(ROOM), ids: null }] }]);
  const [note] = [...local.values()].map((each) => JSON.parse(each));
  assert.deepEqual([note.nodes, note.drafts.length], [[], 1]);
});

test("what is typed while it is stored that a draft was deleted is all there when the page is closed then", async () => {
  local.clear();
  const values = new Map();
  const tab = new Tab(values);
  tab.type(() => "Good morning");
  await tab.save();
  tab.drafts.put("root", undefined);
  const { transact } = tab.local;
  tab.local.transact = async (...asked) => {
    await transact.apply(tab.local, asked);
    await new Promise(() => {}); // the page is closed before it hears of it
  };
  tab.save();
  while (values.get("s,root")) await new Promise(setImmediate);
  tab.type(() => "Good men");
  tab.leave([]);
  for (const [name, noted] of local) local.set(name, JSON.stringify({ ...JSON.parse(noted), time: 0 })); // long ago
  const next = new Tab(values);
  await next.load();
  await next.begin(next.replica);
  assert.equal(next.drafts.at("root"), "Good men");
});
