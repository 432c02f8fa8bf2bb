// The page's beginning, and what its buttons do.

import { health, openapi, setKey } from "./api.js";
import { Cards } from "./cards.js";
import { Compare } from "./compare.js";
import { Desk } from "./desk.js";
import { copy, download, readJson } from "./files.js";
import { Peek } from "./peek.js";
import { forgive, safely, tell } from "./say.js";
import { Settings } from "./settings.js";
import { ROOT, textOf } from "./tree.js";
import { Writing } from "./writing.js";

const find = (selector) => document.querySelector(selector);
const onClick = (selector, action) => find(selector).addEventListener("click", action);

// What the buttons of a card do.
const cardActions = (desk, writing) => ({
  keep: (node) => {
    node.kept = true;
    desk.save(node);
    desk.go(node.id);
  },
  more: safely((node) => writing.generateFrom(node.id)),
  stop: safely((node) => writing.stop(node)),
  continue: safely((node) => writing.continue(node)),
  copy: safely(async (node) => {
    await copy(textOf(node));
    tell("Copied.");
  }),
  discard: (node) => {
    desk.tree.discard(node.id);
    desk.save(node);
    desk.show();
    find("#undo").focus();
    tell("Discarded. Undo brings it back.");
  },
});

function listen(desk, writing) {
  const { story } = desk;
  const generate = safely(() => writing.generate());
  const resume = safely(() => writing.resume());
  onClick("#generate", generate);
  onClick("#stop", safely(() => writing.stopAll()));
  onClick("#undo", () => desk.undo());
  onClick("#new", () => {
    desk.go(ROOT);
    story.focus();
  });
  onClick("#export", () => download("story.json", "application/json", JSON.stringify(desk.tree.export())));
  onClick("#markdown", () => download("story.md", "text/markdown", `${desk.tree.text(desk.tree.current)}\n`));
  onClick("#error button", forgive);
  onClick("#forget", safely(async () => {
    if (!confirm("Delete the whole tree from this browser? This can't be undone; export it first to keep it.")) return;
    await writing.stopAll();
    await desk.clear();
  }));
  find("#import").addEventListener("change", safely(async ({ target }) => {
    const [file] = target.files;
    if (!file) return;
    const nodes = desk.tree.import(await readJson(file).finally(() => (target.value = "")));
    desk.save(...nodes);
    desk.show();
    tell(`${nodes.length} texts were imported.`);
  }));
  find("#key").addEventListener("submit", (event) => {
    event.preventDefault();
    setKey(find("#key-input").value);
    find("#key").hidden = true;
    forgive();
    tell("The key is used from now on. Generate again.");
    resume();
  });
  document.addEventListener("input", () => desk.savePage());
  resume();
  addEventListener("pagehide", () => desk.save());
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    generate();
  });
}

async function begin() {
  const { components } = await openapi();
  const settings = new Settings(components.schemas, { inSight: find("#in-sight"), folded: find("#folded") });
  const desk = new Desk(settings, new Compare(settings, find("#story")), find("#story"));
  const writing = new Writing(desk);
  desk.cards = new Cards(find("#cards"), desk, writing, cardActions(desk, writing));
  new Peek(find("#peek"), desk, safely((node, k, choice) => {
    const id = desk.tree.fork(node.id, k, choice);
    desk.save(desk.tree.nodes.get(id));
    return writing.generateFrom(id);
  }));
  await desk.open();
  listen(desk, writing);
  document.body.dataset.ready = "true";
  find("#model").textContent = (await health()).model;
}

safely(begin)();
