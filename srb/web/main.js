// The page: what its buttons do, and what it says.

import { cancel, evaluate, health, openapi, setKey } from "./api.js";
import { Cards } from "./cards.js";
import { Compare, branches } from "./compare.js";
import { Generation } from "./generation.js";
import { Peek } from "./peek.js";
import { drawPath, drawTree } from "./places.js";
import { Settings } from "./settings.js";
import { Store } from "./store.js";
import { ROOT, Tree, textOf } from "./tree.js";

const SAVE_MILLISECONDS = 2000; // while alternatives are running; their ends are saved at once
const $ = (selector) => document.querySelector(selector);

const story = $("#story");
const unsaved = new Set();
const generations = new Map(); // by node, while it runs
const requests = new Set(); // what Stop stops
let tree = new Tree();
let store = null;
let settings;
let compare;
let cards;
let saving;

// What the page says

function tell(text) {
  $("#status").textContent = text;
}

function complain(error) {
  if (error.status === 401) $("#key").hidden = false;
  $("#error-text").textContent = error.message;
  $("#error").hidden = false;
}

function forgive() {
  $("#error").hidden = true;
}

// Runs what a button does; what goes wrong is said on the page.
const safely = (action) => async (...args) => {
  forgive();
  try {
    await action(...args);
  } catch (error) {
    complain(error);
  }
};

// Where the story is

function show() {
  story.value = tree.text(tree.current);
  drawPath($("#path"), tree, go);
  drawTree($("#tree"), tree, go);
  $("#undo").disabled = tree.history.length === 0;
  cards.show();
  save();
}

function go(id, shown) {
  tree.go(id, shown);
  show();
}

function save(...nodes) {
  for (const node of nodes) unsaved.add(node);
  clearTimeout(saving);
  saving = null;
  const changed = [...unsaved].filter((node) => tree.nodes.has(node.id));
  unsaved.clear();
  savePage(changed);
}

function savePage(nodes = []) {
  const page = {
    current: tree.current,
    shown: tree.shown,
    history: tree.history,
    draft: story.value,
    settings: settings.values,
    compare: compare.values,
  };
  store?.save(nodes, page).catch((error) => complain(new Error(`The browser can't keep the tree: ${error.message}. Export it.`)));
}

function saveSoon(...nodes) {
  for (const node of nodes) unsaved.add(node);
  saving ??= setTimeout(save, SAVE_MILLISECONDS);
}

// Generating

// While something runs that Stop can stop.
async function during(request, run) {
  requests.add(request);
  $("#stop").disabled = false;
  try {
    return await run();
  } finally {
    requests.delete(request);
    $("#stop").disabled = requests.size === 0;
    $("#progress").hidden = true;
  }
}

// The nodes that a request's columns continue. What was typed gets its token ids from the server, and is evaluated.
// null when that was stopped.
async function parents(columns) {
  const ids = columns.map(({ prompt }) => tree.write(prompt ?? story.value));
  for (const id of new Set(ids)) {
    const node = tree.nodes.get(id);
    if (!node?.typed || node.pieces[0].ids) continue;
    tell("Reading the text …");
    let request;
    const reading = { stop: () => request && cancel(request) };
    const text = tree.text(id);
    const known = await during(reading, () => evaluate(text, { onOpen: (id) => (request = id), onProgress: progress }));
    if (!known) return null;
    node.pieces[0].ids = known;
    node.whole = true;
    save(node);
  }
  return ids;
}

function progress({ evaluated, cached, total }) {
  const bar = $("#progress");
  bar.hidden = evaluated + cached >= total || total < 100;
  bar.max = total;
  bar.value = evaluated + cached;
  if (!bar.hidden) tell(`Reading the text: ${evaluated + cached} of ${total} tokens`);
}

const generate = safely(async () => {
  const columns = compare.columns();
  const fields = settings.read();
  const body = branches(compare.what.value === "setting" ? columns : [columns[0]], fields);
  const ids = await parents(columns);
  if (!ids) return tell("Stopped.");
  const prompts = columns.map((_, k) => tree.prompt(ids[k]));
  const isPrompts = compare.what.value === "prompts";
  // Rows of columns: index = row × columns + column. Prompts come the other way round: prompt × n + row.
  const { n } = fields;
  const batch = Date.now();
  const places = Array.from({ length: n * columns.length }, (_, index) =>
    isPrompts
      ? { column: Math.floor(index / n), order: (index % n) * columns.length + Math.floor(index / n) }
      : { column: index % columns.length, order: index },
  );
  const nodes = places.map(({ column, order }) => ({
    parent: ids[column],
    order,
    label: columns[column].label ?? undefined,
    columns: columns.length,
    batch,
  }));
  await start(
    nodes.map((fields) => tree.add(fields)),
    { ...body, prompt: isPrompts ? prompts : prompts[0] },
    () => go(ids[0], [...new Set(ids)]),
  );
});

// Runs a request whose alternatives become these nodes; new ones that never ran don't stay in the tree.
async function start(nodes, body, opened) {
  const generation = new Generation(nodes, body, {
    opened: () => {
      for (const node of nodes) generations.set(node, generation);
      tell(`${nodes.length === 1 ? "One alternative" : `${nodes.length} alternatives`} asked for …`);
      opened();
      nodes.forEach(cards.change, cards);
    },
    changed: (node) => {
      cards.change(node);
      saveSoon(node);
    },
    ended: (node) => {
      generations.delete(node);
      cards.change(node);
      saveSoon(node);
    },
    told: (event) => hear(event, nodes.length),
  });
  try {
    await during(generation, () => generation.run());
  } finally {
    if (!generation.id) for (const node of nodes) if (!node.pieces.length) tree.nodes.delete(node.id);
    save(...nodes);
  }
}

function hear(event, count) {
  if (event.event === "progress") progress(event);
  if (event.event === "start") {
    tell(count === 1 ? "One alternative is being written." : `${count} alternatives are being written.`);
    if (event.ignored.length) complain(new Error(`These settings have no effect here: ${event.ignored.join(", ")}`));
  }
  if (event.event === "error" && event.index === undefined) complain(new Error(event.error.message));
  if (event.event === "done") {
    const { completion_tokens: tokens } = event.usage;
    const rate = (tokens * 1000) / event.timings.predicted_ms;
    tell(`Done: ${tokens} tokens${tokens ? `, ${rate.toFixed(0)} per second in all` : ""}.`);
  }
}

// From a node on: new alternatives that begin with the text so far.
function generateFrom(id) {
  compare.values = { ...compare.values, what: "" };
  go(id);
  return generate();
}

const stopAll = safely(() => Promise.all([...requests].map((each) => each.stop())));

const actions = {
  keep: (node) => {
    node.kept = true;
    save(node);
    go(node.id);
    story.focus({ preventScroll: true });
  },
  more: (node) => generateFrom(node.id),
  stop: safely((node) => generations.get(node)?.stop(node)),
  continue: safely(async (node) => {
    if (tree.children(node.id).length) return go(node.id); // its text must stay: others go on from its end
    const fields = { ...settings.read(), n: 1 };
    await start([node], { ...fields, prompt: tree.prompt(node.id) }, () => {});
  }),
  copy: safely(async (node) => {
    await copy(textOf(node));
    tell("Copied.");
  }),
  discard: (node) => {
    tree.discard(node.id);
    save(node);
    show();
    $("#undo").focus();
    tell("Discarded. Undo brings it back.");
  },
};

async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const box = document.createElement("textarea"); // over plain HTTP from another machine there is no clipboard
  box.value = text;
  document.body.append(box);
  box.select();
  const copied = document.execCommand("copy");
  box.remove();
  if (!copied) throw new Error("The browser doesn't let this page copy. Select the text and copy it.");
}

// Files

function download(name, type, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

const importTree = safely(async () => {
  const [file] = $("#import").files;
  $("#import").value = "";
  if (!file) return;
  let data;
  try {
    data = JSON.parse(await file.text());
  } catch {
    throw new Error(`${file.name} is not JSON`);
  }
  const nodes = tree.import(data);
  save(...nodes);
  show();
  tell(`${nodes.length} texts were imported.`);
});

const forget = safely(async () => {
  if (!confirm("Delete the whole tree from this browser? This can't be undone; export it first to keep it.")) return;
  await stopAll();
  await store?.clear();
  tree = new Tree();
  unsaved.clear();
  show();
});

// Beginning

function listen() {
  $("#generate").addEventListener("click", generate);
  $("#stop").addEventListener("click", stopAll);
  $("#undo").addEventListener("click", () => {
    const node = tree.undo();
    if (node) save(node);
    show();
  });
  $("#new").addEventListener("click", () => {
    go(ROOT);
    story.focus();
  });
  $("#export").addEventListener("click", () => download("story.json", "application/json", JSON.stringify(tree.export())));
  $("#markdown").addEventListener("click", () => download("story.md", "text/markdown", `${tree.text(tree.current)}\n`));
  $("#import").addEventListener("change", importTree);
  $("#forget").addEventListener("click", forget);
  $("#error button").addEventListener("click", forgive);
  $("#key").addEventListener("submit", (event) => {
    event.preventDefault();
    setKey($("#key input").value);
    $("#key").hidden = true;
    forgive();
    tell("The key is used from now on. Generate again.");
  });
  document.addEventListener("input", () => savePage());
  addEventListener("pagehide", () => save());
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      generate();
    }
  });
}

async function begin() {
  const { components } = await openapi();
  settings = new Settings(components.schemas, { inSight: $("#in-sight"), folded: $("#folded") });
  compare = new Compare(settings, story);
  cards = new Cards($("#cards"), () => tree, (node) => generations.has(node), actions);
  new Peek($("#peek"), () => tree, (node, k, choice) => {
    const id = tree.fork(node.id, k, choice);
    save(tree.nodes.get(id));
    generateFrom(id);
  });
  let draft = "";
  try {
    store = await Store.open();
    const { nodes, page } = await store.load();
    tree = new Tree(nodes, page.current);
    if (page.shown?.every((id) => tree.has(id))) tree.shown = page.shown;
    tree.history = page.history ?? [];
    settings.values = page.settings ?? {};
    compare.values = page.compare ?? {};
    draft = page.draft ?? "";
  } catch (error) {
    complain(new Error(`The browser doesn't keep the tree over reloads: ${error.message}`));
  }
  listen();
  show();
  story.value = draft || story.value;
  document.body.dataset.ready = "true";
  $("#model").textContent = (await health()).model;
}

safely(begin)();
