// What lies on the writer's desk: the tree, where the story is in it, and what is typed; shown, and kept in the browser.

import { drawPath, drawTree } from "./places.js";
import { complain } from "./say.js";
import { Store } from "./store.js";
import { Tree } from "./tree.js";

const SAVE_MILLISECONDS = 5000; // while alternatives are running

export class Desk {
  constructor(settings, compare, story) {
    Object.assign(this, { settings, compare, story });
    this.tree = new Tree();
    this.cards = null;
    this.store = null;
    this.unsaved = new Set();
  }

  // Brings back what the browser has kept, and shows it.
  async open() {
    let draft;
    try {
      this.store = await Store.open();
      const { nodes, page } = await this.store.load();
      this.tree = new Tree(nodes, page.current);
      if (page.shown?.every((id) => this.tree.has(id))) this.tree.shown = page.shown;
      this.tree.history = page.history ?? [];
      this.settings.values = page.settings ?? {};
      this.compare.values = page.compare ?? {};
      draft = page.draft;
    } catch (error) {
      complain(new Error(`The browser doesn't keep the tree over reloads: ${error.message}`));
    }
    this.#draw();
    this.story.value = draft ?? this.story.value;
  }

  #draw() {
    const go = (id) => this.go(id);
    this.story.value = this.tree.text(this.tree.current);
    drawPath(document.querySelector("#path"), this.tree, go);
    drawTree(document.querySelector("#tree"), this.tree, go);
    document.querySelector("#undo").disabled = this.tree.history.length === 0;
    this.cards.show();
  }

  show() {
    this.#draw();
    // Where the button that was pressed has gone with its card, the keyboard goes on from the path.
    if (document.activeElement === document.body)
      document.querySelector("#path [aria-current]").focus({ preventScroll: true });
    this.save();
  }

  go(id, shown) {
    this.tree.go(id, shown);
    this.show();
  }

  undo() {
    const node = this.tree.undo();
    if (node) this.unsaved.add(node);
    this.show();
  }

  save(...nodes) {
    for (const node of nodes) this.unsaved.add(node);
    clearTimeout(this.saving);
    this.saving = null;
    const changed = [...this.unsaved].filter((node) => this.tree.nodes.has(node.id));
    this.unsaved.clear();
    this.savePage(changed);
  }

  saveSoon(node) {
    this.unsaved.add(node);
    this.saving ??= setTimeout(() => this.save(), SAVE_MILLISECONDS);
  }

  // Everything but nodes that haven't changed; it's little, so it may follow every key.
  savePage(nodes = []) {
    const { current, shown, history } = this.tree;
    const fields = { draft: this.story.value, settings: this.settings.values, compare: this.compare.values };
    this.store
      ?.save(nodes, { current, shown, history, ...fields })
      .catch((error) => complain(new Error(`The browser can't keep the tree: ${error.message}. Export it.`)));
  }

  async clear() {
    await this.store?.clear();
    this.tree = new Tree();
    this.unsaved.clear();
    this.show();
  }
}
