// What lies on the writer's desk: the tree, where the story is in it, and what is typed; shown, and kept.

import { Asking } from "./ask.js";
import { Drafts, placeOf } from "./drafts.js";
import { isLost } from "./keys.js";
import { drawPath, drawTree } from "./places.js";
import { Saving } from "./saving.js";
import { complain, saidOf, tell } from "./say.js";
import { mend } from "./sound.js";
import { Store } from "./store.js";
import { ROOT, textOf, Tree } from "./tree.js";

const SAVE_MILLISECONDS = 5000; // while alternatives are running
const PAGE = Symbol("all that isn't in the tree, but for drafts");

export class Desk {
  constructor(settings, compare, story) {
    Object.assign(this, { settings, compare, story });
    this.tree = new Tree();
    this.asking = new Asking(document.querySelector("#desk"), () => this.#switch());
    this.note = document.querySelector("#note");
    this.cards = null;
    this.context = null;
    this.store = new Store();
    this.saving = new Saving((items) => this.#write(items), saidOf("What you wrote last"));
    this.growing = new Set(); // nodes that are kept soon
    this.untils = {}; // of requests
  }

  // Brings back what a store has kept, and shows it.
  async open(store) {
    const { nodes, page, drafts } = await store.load();
    const mended = mend(nodes);
    this.growing = new Set(mended); // they are kept so
    if (mended.length) complain(new Error(`Something in ${mended.length} texts of this story could not be read. It was left out.`));
    this.store = store;
    const left = nodes.filter((node) => node.end === undefined && page.untils?.[node.request]);
    this.untils = Object.fromEntries(left.map(({ request }) => [request, page.untils[request]]));
    for (const node of nodes) node.until ??= this.untils[node.request];
    const tree = (this.tree = new Tree(nodes, page.current));
    if (page.shown?.every((id) => tree.has(id))) tree.shown = page.shown;
    tree.history = (page.history ?? []).filter(({ go, discarded }) => tree.has(go ?? discarded));
    this.settings.values = page.settings ?? {};
    this.compare.texts = page.texts ?? [];
    this.compare.values = page.compare ?? {};
    this.asking.values = page.asking ?? {};
    this.note.value = page.note ?? "";
    this.story.drafts = new Drafts(drafts);
    this.#draw();
    // An older page has kept what was in the box, and showed conversations as their templates write them.
    if (page.draft !== undefined && page.draft !== tree.text(tree.current)) this.story.type(page.draft);
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
    // It was ended here, at a boundary, and the store doesn't know that yet: it may have the text behind, too.
    const isEndedHere = node.endsAt !== undefined && endsAt === undefined && node.request === heard.request;
    if (isEndedHere) Object.assign(node, { kept, discarded });
    else if (writing.isRunning(node) || heard.end === undefined) Object.assign(node, { kept, discarded, endsAt });
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
    this.#drawTree();
    this.cards.show();
    this.#follow(node);
  }

  // Goes to where something was written, if it's further on from here, and nothing else is in sight or typed.
  #follow(node) {
    const { tree } = this;
    const id = node.typed ? node.id : node.parent;
    const isOnTheWay = tree.current === ROOT || tree.path(id).some((each) => each.id === tree.current);
    if (id === tree.current || !isOnTheWay || this.cards.cards.size || this.#isTyped) return;
    tree.go(id);
    this.#draw();
    this.save();
  }

  get #place() {
    return placeOf(this.tree.current, this.asking.isOn);
  }

  // Whether the box has what isn't in the tree.
  get #isTyped() {
    return this.story.drafts.at(this.#place) !== undefined;
  }

  #draw() {
    this.story.show(this.#place, this.asking.text(this.tree));
    this.asking.draw(this.tree);
    this.measure();
    drawPath(document.querySelector("#path"), this.tree, this.story.drafts, (id) => {
      this.go(id);
      this.story.resume();
    });
    this.#drawTree();
    this.showOpenings();
    document.querySelector("#undo").disabled = this.tree.history.length === 0;
    this.cards.show();
  }

  #drawTree() {
    drawTree(document.querySelector("#tree"), this.tree, this.story.drafts, (id) => this.go(id));
  }

  // Only where nothing is written yet, as they take the place of what is.
  showOpenings() {
    document.querySelector("#openings").hidden = this.asking.isOn || this.tree.nodes.size > 0 || this.story.value !== "";
  }

  // How full the context is with what is here.
  measure() {
    const { asking, story, tree } = this;
    if (this.#isTyped) return this.context.draw(tree.text(asking.before(tree)) + story.value);
    const ids = tree.prompt(tree.current);
    this.context.draw(tree.text(tree.current), Array.isArray(ids) ? ids : undefined);
  }

  // Between continuing a text and asking.
  #switch() {
    this.#draw();
    this.savePage();
  }

  show() {
    this.#draw();
    if (isLost()) this.story.resume(); // the button that was pressed has gone with its card
    this.save();
  }

  go(id, shown) {
    const { drafts } = this.story;
    const left = this.tree.current;
    this.tree.go(id, shown);
    this.show();
    if (left !== this.tree.current && drafts.of(left).length) tell("What you typed there is kept as a draft.");
  }

  // Goes on from the end of a node.
  keep(node) {
    node.kept = true;
    this.save(node);
    this.go(node.id);
    this.story.resume();
  }

  undo() {
    const node = this.tree.undo();
    if (node) this.growing.add(node);
    this.show();
  }

  // What is typed now, for `write` and `settle`.
  take() {
    return { place: this.#place, text: this.story.value };
  }

  // The id of the node of the text so far as it was edited, or of another text.
  async write(text) {
    const { asking, tree } = this;
    const node = asking.isOn ? await asking.written(tree, text) : tree.written(text);
    return node.id ?? (await this.add(node)).id;
  }

  // Goes on from a node that has what was taken, and shows these. Whoever has typed on meanwhile stays where that is, and
  // whoever has gone elsewhere isn't called back.
  settle({ place, text }, id, shown) {
    const isHere = place === this.#place;
    const hasTyped = text !== this.story.value;
    if (this.tree.nodes.has(id)) this.growing.add(this.tree.nodes.get(id)); // it's kept with what takes the draft away
    this.story.drafts.settle(place, text);
    if (isHere) this.go(hasTyped ? this.tree.current : id, shown);
    else this.show();
  }

  async add(fields) {
    const added = await this.store.add(fields);
    const node = Object.assign(this.tree.add(added), added);
    this.save(node);
    return node;
  }

  // Keeps what has changed. It is done when it is kept, or has been complained of.
  save(...nodes) {
    clearTimeout(this.saver);
    this.saver = null;
    const changed = new Set([...this.growing, ...nodes]);
    this.growing.clear();
    return this.savePage(...changed);
  }

  saveSoon(node) {
    this.growing.add(node);
    this.saver ??= setTimeout(() => this.save(), SAVE_MILLISECONDS);
  }

  // What a new story begins with, too.
  get choices() {
    return { settings: this.settings.values, compare: this.compare.values, asking: this.asking.values };
  }

  // Keeps these nodes, and all that isn't in the tree. That is little, so it may follow every key.
  savePage(...nodes) {
    return this.saving.save(PAGE, ...this.story.drafts.changes(), ...nodes);
  }

  #write(items) {
    const { current, shown, history } = this.tree;
    const drafts = items.filter((item) => typeof item === "string").map((place) => [place, this.story.drafts.at(place)]);
    const typed = { note: this.note.value, texts: this.compare.texts };
    const page = { current, shown, history, untils: this.untils, ...typed, ...this.choices };
    return this.store.save(items.filter((item) => item.pieces), page, drafts);
  }
}
