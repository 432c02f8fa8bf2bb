// What lies on the writer's desk: the tree, where the story is in it, and what is typed; shown, and kept.

import { Asking } from "./ask.js";
import { isLost } from "./keys.js";
import { drawPath, drawTree } from "./places.js";
import { complain } from "./say.js";
import { Store } from "./store.js";
import { ROOT, textOf, Tree } from "./tree.js";

const SAVE_MILLISECONDS = 5000; // while alternatives are running

export class Desk {
  constructor(settings, compare, story) {
    Object.assign(this, { settings, compare, story });
    this.tree = new Tree();
    this.asking = new Asking(document.querySelector("#desk"), () => this.#switch());
    this.cards = null;
    this.context = null;
    this.store = new Store();
    this.unsaved = new Set();
    this.untils = {}; // of requests
  }

  // Brings back what a store has kept, and shows it.
  async open(store) {
    const { nodes, page } = await store.load();
    this.store = store;
    const left = nodes.filter((node) => node.end === undefined && page.untils?.[node.request]);
    this.untils = Object.fromEntries(left.map(({ request }) => [request, page.untils[request]]));
    for (const node of nodes) node.until ??= this.untils[node.request];
    this.tree = new Tree(nodes, page.current);
    if (page.shown?.every((id) => this.tree.has(id))) this.tree.shown = page.shown;
    this.tree.history = page.history ?? [];
    this.settings.values = page.settings ?? {};
    this.compare.values = page.compare ?? {};
    this.asking.values = page.asking ?? {};
    document.querySelector("#note").value = page.note ?? "";
    this.#draw();
    this.story.value = page.draft ?? this.story.value;
    this.showOpenings();
    if (store.isShared && nodes.length) this.#follow(nodes.at(-1));
  }

  // Has the alternatives of a request end where they have got so long. A shared store doesn't know of that.
  limit(request, until) {
    this.untils[request] = until;
    for (const node of this.tree.nodes.values()) if (node.request === request) node.until = until;
  }

  // Takes what a shared store says of a node. While that runs here, its request says the rest.
  hear(heard, writing) {
    const { pieces, ...said } = heard;
    const node = this.tree.add(heard);
    node.until ??= this.untils[node.request];
    const { kept, discarded, endsAt } = heard;
    if (writing.isRunning(node) || heard.end === undefined) Object.assign(node, { kept, discarded, endsAt });
    else {
      if (textOf(node) !== textOf(heard)) {
        this.cards.forget(node);
        node.pieces = pieces;
      }
      Object.assign(node, said);
    }
    return node;
  }

  // Shows what was heard; this node last.
  showNews(node) {
    drawTree(document.querySelector("#tree"), this.tree, (id) => this.go(id));
    this.cards.show();
    this.#follow(node);
  }

  // Goes to where something was written, if it's further on from here, and nothing else is in sight or typed.
  #follow(node) {
    const { tree } = this;
    const id = node.typed ? node.id : node.parent;
    const isOnTheWay = tree.current === ROOT || tree.path(id).some((each) => each.id === tree.current);
    const isFree = !this.cards.cards.size && this.story.value === this.asking.text(tree);
    if (id === tree.current || !isOnTheWay || !isFree) return;
    tree.go(id);
    this.#draw();
    this.save();
  }

  #draw() {
    const go = (id) => this.go(id);
    this.story.value = this.asking.text(this.tree);
    this.asking.draw(this.tree);
    this.#measure();
    drawPath(document.querySelector("#path"), this.tree, go);
    drawTree(document.querySelector("#tree"), this.tree, go);
    this.showOpenings();
    document.querySelector("#undo").disabled = this.tree.history.length === 0;
    this.cards.show();
  }

  // Only where nothing is written yet, as they take the place of what is.
  showOpenings() {
    document.querySelector("#openings").hidden = this.asking.isOn || this.tree.nodes.size > 0 || this.story.value !== "";
  }

  #measure() {
    const { asking, context, story, tree } = this;
    const rest = asking.isOn ? "" : story.value;
    context?.draw(tree.prompt(tree.current), rest, asking.isOn ? 0 : tree.text(tree.current).length);
  }

  // Between continuing a text and asking; what was typed stays.
  #switch() {
    const typed = this.story.value;
    const isNew = !this.tree.path(this.tree.current).length;
    this.#draw();
    if (isNew) this.story.value = typed;
    this.showOpenings();
    this.savePage();
  }

  show() {
    this.#draw();
    // Where the button that was pressed has gone with its card, the keyboard goes on from the path.
    if (isLost()) document.querySelector("#path [aria-current]").focus({ preventScroll: true });
    this.save();
  }

  go(id, shown) {
    this.tree.go(id, shown);
    this.show();
  }

  // Goes on from the end of a node.
  keep(node) {
    node.kept = true;
    this.save(node);
    this.go(node.id);
  }

  undo() {
    const node = this.tree.undo();
    if (node) this.unsaved.add(node);
    this.show();
  }

  // The id of the node of the text so far as it was edited, or of another text.
  async write(text) {
    const { asking, tree } = this;
    const node = asking.isOn ? await asking.written(tree, text) : tree.written(text);
    return node.id ?? (await this.add(node)).id;
  }

  async add(fields) {
    const added = await this.store.add(fields);
    const node = Object.assign(this.tree.add(added), added);
    this.save(node);
    return node;
  }

  // Keeps what has changed. It is done when it is kept, or has been complained of.
  save(...nodes) {
    for (const node of nodes) this.unsaved.add(node);
    clearTimeout(this.saving);
    this.saving = null;
    const changed = [...this.unsaved].filter((node) => this.tree.nodes.has(node.id));
    this.unsaved.clear();
    return this.savePage(changed);
  }

  saveSoon(node) {
    this.unsaved.add(node);
    this.saving ??= setTimeout(() => this.save(), SAVE_MILLISECONDS);
  }

  // What a new story begins with, too.
  get choices() {
    return { settings: this.settings.values, compare: this.compare.values, asking: this.asking.values };
  }

  // Everything but nodes that haven't changed; it's little, so it may follow every key.
  savePage(nodes = []) {
    const { current, shown, history } = this.tree;
    const typed = { draft: this.story.value, note: document.querySelector("#note").value };
    return this.store
      .save(nodes, { current, shown, history, untils: this.untils, ...typed, ...this.choices })
      .catch((error) => complain(new Error(`What you did can't be kept: ${error.message}. Export the tree.`)));
  }
}
