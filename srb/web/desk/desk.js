// @ts-check
// What lies on the writer's desk: the tree, where the story is in it, and what is typed; shown, and kept.

import { find, isFocusLost } from "../lib/dom.js";
import { saveMessages, showError, showStatus } from "../lib/messages.js";
import { SaveQueue } from "../lib/save_queue.js";
import { MODEL, packMarks } from "../story/authorship.js";
import { Store } from "../story/browser_store.js";
import { fitted } from "../story/conversation.js";
import { Drafts } from "../story/drafts.js";
import { Steps } from "../story/edits.js";
import { applyLengthLimits } from "../story/generation.js";
import { ROOT, textOf, Tree } from "../story/tree.js";
import { repair, upgradeQuestions } from "../story/validation.js";
import { Background } from "./background.js";
import { Chapters } from "./chapters.js";
import { EditorChat } from "./editor_chat.js";
import { SearchPanel } from "./search_panel.js";
import { drawPath } from "./tree_list.js";
import { UndoHistory } from "./undo_history.js";
import { Versions } from "./versions.js";
import { WordCount } from "./word_count.js";

const SAVE_MILLISECONDS = 5000; // while alternatives are running
const PAGE = Symbol("all that isn't in the tree, but for drafts");

export class Desk {
  constructor(settings, compare, story) {
    this.settings = settings;
    this.compare = compare;
    this.story = story;
    this.tree = new Tree();
    this.undoHistory = new UndoHistory(this);
    story.step = (change) => {
      this.wordCount.typed(story.value, change);
      this.undoHistory.push({ kind: "text", place: this.tree.current, ...change });
    };
    this.wordCount = new WordCount(find("#words"));
    this.chapters = new Chapters(find("#chapters"), story, () => find("#stories:modal")?.close());
    this.background = new Background(find("#model-view"), () => this.measure());
    this.editorChat = new EditorChat(find("#ask"), this);
    this.searchPanel = new SearchPanel(find("#stories"), this);
    this.cards = this.promptView = this.treeDrawing = this.probabilities = null; // main.js makes them, of the desk
    this.versions = new Versions(this);
    this.context = null;
    this.store = new Store();
    this.saving = new SaveQueue((items) => this.#write(items), saveMessages("What you wrote last"));
    this.growing = new Set(); // nodes that are kept soon
    this.untils = {}; // of requests
    this.adding = new Map(); // nodes that the store doesn't have yet, by their fields
  }

  // Brings back what a store has kept, and shows it.
  async open(store) {
    const { nodes, page, drafts } = await store.load();
    const mended = repair(nodes);
    const asked = upgradeQuestions(nodes);
    const { untils, late } = applyLengthLimits(nodes, page.untils);
    this.growing = new Set([...mended, ...asked, ...late]); // they are kept so
    if (mended.length) showError(new Error(`Parts of ${mended.length} texts of this story couldn't be read and were left out.`));
    this.store = store;
    this.untils = untils;
    const tree = (this.tree = new Tree(nodes, page.current));
    if (page.shown?.every((id) => tree.has(id))) tree.shown = page.shown;
    this.undoHistory.steps = new Steps(asked.length && !page.conversation ? {} : page.steps);
    this.settings.values = page.settings ?? {};
    this.compare.texts = page.texts ?? [];
    this.compare.values = page.compare ?? {};
    this.editorChat.values = page;
    this.editorChat.choices = page.editor ?? { system: page.asking?.system || undefined };
    this.background.values = page.beside ?? { memory: page.note };
    this.story.drafts = new Drafts(drafts, page.marks);
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
    upgradeQuestions([heard]);
    const { pieces, healed, ...said } = heard; // what was healed in fact is known where it was read
    const node = this.tree.add(heard);
    node.until ??= this.untils[node.request];
    const { kept, discarded, name, endsAt } = heard;
    // It was ended here, at a boundary, and the store doesn't know that yet: it may have the text behind, too.
    const isEndedHere = node.endsAt !== undefined && endsAt === undefined && node.request === heard.request;
    if (isEndedHere) Object.assign(node, { kept, discarded, name });
    else if (writing.isRunning(node) || heard.end === undefined) Object.assign(node, { kept, discarded, name, endsAt });
    else {
      if (textOf(node) !== textOf(heard)) {
        Object.assign(node, { pieces, healed });
        this.cards.redraw(node);
      }
      Object.assign(node, said);
    }
    return node;
  }

  // Shows what was heard; this node last.
  showNews(node) {
    this.drawTree();
    this.#drawCards();
    this.#follow(node);
  }

  // Goes to where something was written, if it's further on from here, and nothing else is in sight or typed.
  #follow(node) {
    const { tree } = this;
    const below = node.typed ? node.id : node.parent;
    const id = tree.start(below);
    const isOnTheWay = tree.current === ROOT || tree.path(id).some((each) => each.id === tree.current);
    if (id === tree.current || !isOnTheWay || this.cards.cards.size || this.#isTyped) return;
    tree.go(id, [...new Set([below, id])]); // which the writer hasn't done, and can't undo
    this.#draw();
    this.save();
  }

  // Whether the box has what isn't in the tree.
  get #isTyped() {
    return this.story.drafts.has(this.tree.current);
  }

  #draw() {
    const { tree } = this;
    const behind = tree.after(tree.current);
    this.story.show(tree.current, { text: tree.text(tree.current) + behind, marks: tree.marks(tree.current), behind: behind.length });
    this.wordCount.show(this.story.value);
    this.chapters.draw();
    this.measure();
    drawPath(find("#path"), tree, this.story.drafts, (id) => {
      this.go(id);
      this.story.resume();
    });
    this.drawTree();
    this.showOpenings();
    this.undoHistory.draw();
    this.#drawCards();
  }

  #drawCards() {
    this.cards.show();
    this.versions.show();
  }

  drawTree() {
    this.searchPanel.draw();
    this.treeDrawing.draw();
  }

  // Only where nothing is written yet, as they take the place of what is.
  showOpenings() {
    find("#openings").hidden = this.tree.nodes.size > 0 || this.story.value !== "";
  }

  // How full the context is with what the model sees here: all up to the cursor.
  measure() {
    const { story, tree } = this;
    const text = story.value.slice(0, story.selection[1]);
    const ids = text === tree.text(tree.current) ? tree.prompt(tree.current) : null;
    this.context.draw(text, Array.isArray(ids) ? ids : undefined);
    this.promptView?.draw(text);
  }

  show() {
    this.#draw();
    if (isFocusLost()) this.story.resume(); // the button that was pressed has gone with its card
    this.save();
  }

  get state() {
    return { current: this.tree.current, shown: this.tree.shown };
  }

  // kept: whether that is because the node was kept.
  go(id, shown, kept) {
    const { drafts } = this.story;
    const [from, left] = [this.state, this.tree.current];
    const isOther = this.tree.go(id, shown);
    if (isOther) this.undoHistory.push({ kind: "go", from, to: this.state, kept });
    this.show();
    if (left !== this.tree.current && drafts.has(left)) showStatus("What you typed there is saved as a draft.");
  }

  // Goes to a place, or to where an alternative stands; one that was discarded is brought back. It has the keyboard then.
  visit(node) {
    const { tree } = this;
    if (node.discarded) {
      node.discarded = false;
      this.undoHistory.push({ kind: "restore", node: node.id });
      this.growing.add(node);
    }
    if (tree.places(node.parent).includes(node)) return this.go(node.id);
    const place = tree.start(node.parent);
    this.go(place, [...new Set([node.parent, place])]);
    this.cards.focus(node);
  }

  // Goes on from the end of a node.
  keep(node) {
    const { tree, story } = this;
    const kept = node.kept ? undefined : node.id;
    const before = story.value;
    node.kept = true;
    this.growing.add(node);
    this.#takeAlong(node);
    this.go(node.id, undefined, kept);
    if (kept) this.wordCount.changed(before, story.value);
    const end = tree.text(node.id).length;
    story.shade(tree.text(tree.start(node.parent)).length, end);
    story.resume();
  }

  // What the writer has changed behind the cursor while alternatives were written stays behind the one that is kept.
  #takeAlong({ id, ...node }) {
    const { tree, story } = this;
    const parent = tree.start(node.parent);
    const before = tree.text(parent);
    const { passage = "", behind } = tree.nodes.get(parent) ?? {};
    const start = before.length + passage.length;
    const rest = story.value.slice(start);
    const isFurther = behind && rest !== behind && rest[0] === behind[0]; // what is at the cursor stays a draft there
    if (tree.current !== parent || !isFurther || !story.value.startsWith(before + passage)) return;
    const own = tree.text(id);
    const after = tree.after(id);
    const space = after.slice(0, after.length - behind.length);
    const marks = tree.marks(id).slice(0, own.length + space.length) + story.marks.slice(start);
    story.drafts.put(id, own + space + rest, () => packMarks(marks));
  }

  // Puts a passage at the cursor, in one step.
  insert(passage) {
    const { steps } = this.undoHistory;
    const [, at] = this.story.selection;
    const [before, behind] = [this.story.value.slice(0, at), this.story.value.slice(at)];
    steps.close();
    this.story.insert(fitted(before, passage, behind), MODEL);
    steps.close();
    this.measure();
  }

  discard(node) {
    node.discarded = true;
    this.undoHistory.push({ kind: "discard", node: node.id });
    this.growing.add(node);
    this.show();
  }

  // What is typed now, for `write` and `settle`: all of it, and as it is at the cursor, or where `selection` is replaced.
  take(selection = [this.story.selection[1], this.story.selection[1]]) {
    const { value: text, marks } = this.story;
    const [from, to] = selection;
    const [before, passage, behind] = [text.slice(0, from), text.slice(from, to), text.slice(to)];
    return { place: this.tree.current, text, draft: this.story.drafts.at(this.tree.current), before, passage, behind, marks };
  }

  // The id of the node of what was taken, or of another text: {before, passage, behind, marks}.
  async write({ before, ...others }) {
    const node = this.tree.written(before, others);
    if (node.id === ROOT || (node.parent === ROOT && !node.pieces?.length && !node.passage))
      throw new Error(others.behind ? "Alternatives are written at the cursor. Write something before it." : "Write how the story begins.");
    return node.id ?? (await this.add(node)).id;
  }

  // Goes on from a node that has what was taken, and shows these. Whoever has typed on meanwhile stays where that is, and
  // whoever has gone elsewhere isn't called back.
  settle({ place, text, draft }, id, shown) {
    const { story, tree } = this;
    const isHere = place === tree.current;
    const hasTyped = story.drafts.at(place) !== draft; // there, wherever one is now
    if (tree.nodes.has(id)) this.growing.add(tree.nodes.get(id)); // it's kept with what takes the draft away
    story.drafts.settle(place, text);
    this.undoHistory.steps.close();
    if (isHere) tree.go(hasTyped ? tree.current : id, shown);
    if (!hasTyped) this.undoHistory.steps.rename(place, { current: id, shown });
    this.show();
  }

  // Adds a node of these fields: one, also where it's asked for again before the store has it.
  add(fields) {
    const key = JSON.stringify(fields);
    const adding = this.adding.get(key) ?? this.#add(fields).finally(() => this.adding.delete(key));
    this.adding.set(key, adding);
    return adding;
  }

  async #add(fields) {
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
    return { settings: this.settings.values, compare: this.compare.values, editor: this.editorChat.choices };
  }

  // Keeps these nodes, and all that isn't in the tree. That is little, so it may follow every key.
  savePage(...nodes) {
    return this.saving.save(PAGE, ...this.story.drafts.changes(), ...nodes);
  }

  #write(items) {
    const { current, shown } = this.tree;
    const drafts = items.filter((item) => typeof item === "string").map((place) => [place, this.story.drafts.at(place)]);
    const typed = { beside: this.background.values, texts: this.compare.texts, ...this.editorChat.values };
    const marks = this.story.drafts.allMarks;
    const page = { current, shown, steps: this.undoHistory.steps.all, marks, untils: this.untils, ...typed, ...this.choices };
    return this.store.save(items.filter((item) => item.pieces), page, drafts);
  }
}
