// @ts-check
// The writer's desk: the story's tree, the current place, and the text that is being written.

import { find, isFocusLost } from "../lib/dom.js";
import { hideError, saveMessages, showError, showStatus } from "../lib/messages.js";
import { SaveQueue } from "../lib/save_queue.js";
import { MODEL, packMarks, unpackMarks } from "../story/authorship.js";
import { Store } from "../story/browser_store.js";
import { fitted } from "../story/conversation.js";
import { Drafts } from "../story/drafts.js";
import { Steps } from "../story/edits.js";
import { applyLengthLimits } from "../story/generation.js";
import { placeIn, spaceBetween } from "../story/keeping.js";
import { readBackground } from "../story/lorebook.js";
import { merge, same } from "../story/merging.js";
import { difference } from "../story/text_merge.js";
import { gap, ROOT, textOf, Tree } from "../story/tree.js";
import { repair, upgradeQuestions } from "../story/validation.js";
import { Background } from "./background.js";
import { Chapters } from "./chapters.js";
import { Cliches } from "./cliches.js";
import { EditorChat } from "./editor_chat.js";
import { followText, newVersions } from "./other_versions.js";
import { SearchPanel } from "./search_panel.js";
import { Snapshots } from "./snapshots.js";
import { drawStatistics } from "./statistics.js";
import { drawPath } from "./tree_list.js";
import { UndoHistory } from "./undo_history.js";
import { Versions } from "./versions.js";
import { WordCount } from "./word_count.js";

/** @typedef {import("../story/tree.js").StoryNode} StoryNode */
/**
 * @typedef {object} Taken the text at one moment, split at the cursor or around a selection
 * @property {string} place
 * @property {string} text
 * @property {string | undefined} draft
 * @property {string} before
 * @property {string} passage
 * @property {string} behind
 * @property {string} marks
 */

const SAVE_MILLISECONDS = 5000; // while alternatives are running
const PAGE = Symbol("all that isn't in the tree, but for drafts");

const ofNames = (values, names) => Object.fromEntries(names.filter((name) => name in values).map((name) => [name, values[name]]));

export class Desk {
  /**
   * @param {import("../settings/settings.js").Settings} settings
   * @param {import("../settings/compare.js").Compare} compare
   * @param {import("./manuscript.js").Manuscript} story
   */
  constructor(settings, compare, story) {
    this.settings = settings;
    this.compare = compare;
    this.story = story;
    this.tree = new Tree();
    this.undoHistory = new UndoHistory(this);
    story.step = (step, typed) => {
      this.elsewhere = null;
      this.wordCount.typed(story.content, typed);
      this.undoHistory.push(step, typed);
    };
    this.wordCount = new WordCount(find("#words"));
    this.chapters = new Chapters(find("#chapters"), story, () => find("#stories:modal")?.close());
    this.background = new Background(find("#model-view"), () => {
      this.measure();
      this.#hideBoth();
    });
    this.editorChat = new EditorChat(find("#ask"), this);
    this.searchPanel = new SearchPanel(find("#search"), this);
    this.snapshots = new Snapshots(find("#bookmarks"), find("#comparison"), this);
    this.cliches = new Cliches(find("#cliches"), this);
    this.cards = this.combine = this.forks = this.promptView = this.treeDrawing = this.probabilities = null; // set by main.js
    this.versions = new Versions(this);
    this.directions = find("#directions-lines");
    this.context = null;
    this.store = new Store();
    this.saving = new SaveQueue((items) => this.#write(items), saveMessages("What you wrote last"));
    this.splitting = new SaveQueue((items) => Promise.all(items.map((each) => this.#split(...each))), saveMessages("Another version of this text"));
    this.elsewhere = null; // where the writer is on another device
    this.both = /** @type {Error | null} */ (null); // the message that both texts are kept
    this.opened = /** @type {Record<string, any>} */ ({}); // `#others` as it was read
    this.growing = new Set(); // nodes to save soon
    this.untils = {}; // by request
    this.adding = new Map(); // nodes that are being added, by their fields
  }

  /**
   * Load a story and show it.
   * @param {Store} store
   */
  async open(store) {
    const { nodes, page, drafts } = await store.load();
    const repaired = repair(nodes);
    const asked = upgradeQuestions(nodes);
    const { untils, late } = applyLengthLimits(nodes, page.untils);
    this.growing = new Set([...repaired, ...asked, ...late]); // saved as they are now
    if (repaired.length) showError(new Error(`Parts of ${repaired.length} texts of this story couldn't be read and were left out.`));
    this.store = store;
    this.untils = untils;
    const tree = (this.tree = new Tree(nodes, page.current));
    if (page.shown?.every((id) => tree.has(id))) tree.shown = page.shown;
    this.undoHistory.steps = new Steps(asked.length && !page.conversation ? {} : page.steps);
    this.settings.values = page.settings ?? {};
    this.compare.texts = page.texts ?? [];
    this.compare.values = page.compare ?? {};
    this.editorChat.values = { conversation: page.conversation, question: page.question };
    this.directions.value = page.directions ?? "";
    this.editorChat.choices = page.editor ?? { system: page.asking?.system || undefined };
    this.background.values = page.beside ?? { memory: page.note };
    if (this.background.versions.all.length) this.#sayBoth();
    this.opened = this.#others;
    this.story.drafts = new Drafts(drafts, page.marks);
    this.#draw();
    if (Number.isInteger(page.cursor)) this.story.goTo(page.cursor);
    // Older pages stored the text of the box, and showed conversations as the chat template writes them.
    if (page.draft !== undefined && page.draft !== tree.text(tree.current)) this.story.type(page.draft);
    this.showOpenings();
    if (store.isShared && nodes.length) this.#follow(nodes.at(-1));
  }

  /**
   * End the alternatives of a request at this length. A shared store doesn't know the length.
   * @param {string} request
   * @param {import("../story/tree.js").Until} until
   */
  limit(request, until) {
    this.untils[request] = until;
    for (const node of this.tree.nodes.values()) if (node.request === request) node.until = until;
  }

  /**
   * Merge a node that a shared store reported. While its request runs here, the request's own events decide.
   * @param {StoryNode} reported
   * @param {import("./writing.js").Writing} writing
   * @returns {StoryNode}
   */
  merge(reported, writing) {
    upgradeQuestions([reported]);
    const { pieces, healed, ...said } = reported; // `healed` is known where the request was read
    const node = this.tree.add(reported);
    node.until ??= this.untils[node.request];
    const { kept, discarded, name, endsAt } = reported;
    // The alternative was cut here, and the store doesn't know that yet: its text may be longer.
    const isEndedHere = node.endsAt !== undefined && endsAt === undefined && node.request === reported.request;
    if (isEndedHere) Object.assign(node, { kept, discarded, name });
    else if (writing.isRunning(node) || reported.end === undefined) Object.assign(node, { kept, discarded, name, endsAt });
    else {
      if (textOf(node) !== textOf(reported)) {
        Object.assign(node, { pieces, healed });
        this.cards.redraw(node);
      }
      Object.assign(node, said);
    }
    return node;
  }

  /**
   * Show nodes that were reported.
   * @param {StoryNode} node the last of them
   */
  showNews(node) {
    this.drawTree();
    this.#drawCards();
    this.#follow(node);
    this.#followPlace(); // which may have been told before its node
  }

  /** Go to new text by others, if it is further along and nothing else is in sight or typed. */
  #follow(node) {
    const { tree } = this;
    const below = node.typed ? node.id : node.parent;
    const id = tree.start(below);
    const isOnTheWay = tree.current === ROOT || tree.path(id).some((each) => each.id === tree.current);
    if (id === tree.current || !isOnTheWay || this.cards.cards.size || this.#isTyped) return;
    tree.go(id, [...new Set([below, id])]); // not by the writer, so it can't be undone
    this.#draw();
    this.save();
  }

  /** Whether the box has text that isn't in the tree. */
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
    this.forks.draw();
    this.combine.draw();
  }

  drawTree() {
    this.searchPanel.draw();
    this.snapshots.draw();
    this.treeDrawing.draw();
    this.cliches.draw();
    if (find("#statistics").open) drawStatistics(find("#kept-by-setting"), this.tree);
  }

  /** Show openings to choose from while nothing is written. */
  showOpenings() {
    find("#openings").hidden = this.tree.nodes.size > 0 || this.story.value !== "";
  }

  /** Say how much of the text up to the cursor the model sees. */
  measure() {
    const { tree } = this;
    const { before: text, behind } = this.take();
    const ids = text === tree.text(tree.current) ? tree.prompt(tree.current) : null;
    this.context.draw(text, !behind.trim(), Array.isArray(ids) ? ids : undefined);
    this.promptView?.draw(text);
  }

  show() {
    this.#draw();
    if (isFocusLost()) this.story.resume(); // the pressed button has gone with its card
    this.save();
  }

  get state() {
    return { current: this.tree.current, shown: this.tree.shown };
  }

  /**
   * Go to a place.
   * @param {string} id
   * @param {string[]} [shown]
   * @param {string} [kept] the node that was kept by this, if any
   */
  go(id, shown, kept) {
    const { drafts } = this.story;
    const [from, left] = [this.state, this.tree.current];
    this.elsewhere = null;
    const isOther = this.tree.go(id, shown);
    if (isOther) this.undoHistory.push({ kind: "go", from, to: this.state, kept });
    this.show();
    if (left !== this.tree.current && drafts.has(left)) showStatus("What you typed there is kept. Undo brings it back.");
  }

  /**
   * Go to a place, or to the place where an alternative is shown, and focus it. A discarded one is restored.
   * @param {StoryNode} node
   */
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

  /**
   * Continue from the end of a node.
   * @param {StoryNode} node
   * @param {{ isReplacing?: boolean }} [options] whether it replaces what comes after it in the text
   */
  keep(node, { isReplacing = false } = {}) {
    const { tree, story } = this;
    const kept = node.kept ? undefined : node.id;
    const before = story.content;
    node.kept = true;
    this.growing.add(node);
    const at = isReplacing ? null : this.#keepEdits(node);
    this.go(node.id, undefined, kept);
    if (kept) this.wordCount.changed(before, story.content);
    const start = tree.text(tree.start(node.parent)).length;
    const length = tree.text(node.id).length - start;
    story.shade(at ?? start, (at ?? start) + length);
    if (at !== null) showStatus("What you typed meanwhile is still in your text.");
    story.resume();
  }

  /**
   * Keep what the writer changed while the alternatives were written: the text with the alternative is a draft.
   * Returns where the alternative is in it; null without changes, or if there is no place for it.
   */
  #keepEdits({ id, ...node }) {
    const { tree, story } = this;
    const { value: text, marks, drafts } = story;
    const parent = tree.start(node.parent);
    const before = tree.text(parent);
    const { passage = "", behind = tree.after(parent) } = tree.nodes.get(parent) ?? {};
    const isShown = tree.current === parent || tree.shown.every((each) => tree.start(each) === parent);
    const place = isShown && drafts.has(tree.current) && !drafts.has(id) && placeIn(text, { before, passage, behind });
    if (!place) return null;
    const [from, to] = place;
    const own = tree.text(id).slice(before.length);
    const rest = text.slice(to);
    const space = gap(text.slice(0, from), own, rest) || (rest === behind ? "" : spaceBetween(own, rest));
    const known = marks.slice(0, from) + MODEL.repeat(own.length + space.length) + marks.slice(to);
    drafts.put(id, text.slice(0, from) + own + space + rest, () => packMarks(known));
    return from;
  }

  /**
   * Insert a passage at the cursor, in one step.
   * @param {string} passage
   * @param {(before: string, passage: string, behind: string) => string} [fit] adds space around it
   */
  insert(passage, fit = fitted) {
    const { steps } = this.undoHistory;
    const [, at] = this.story.selection;
    const [before, behind] = [this.story.value.slice(0, at), this.story.value.slice(at)];
    steps.close();
    this.story.insert(fit(before, passage, behind), MODEL);
    steps.close();
    this.measure();
  }

  discard(node) {
    node.discarded = true;
    this.undoHistory.push({ kind: "discard", node: node.id });
    this.growing.add(node);
    this.show();
  }

  /**
   * Return the text as it is now, split at the cursor or around a selection, for `write` and `settle`.
   * @param {number[]} [selection]
   * @returns {Taken}
   */
  take(selection = [this.story.selection[1], this.story.selection[1]]) {
    const { value: text, marks } = this.story;
    const [from, to] = selection;
    const [before, passage, behind] = [text.slice(0, from), text.slice(from, to), text.slice(to)];
    return { place: this.tree.current, text, draft: this.story.drafts.at(this.tree.current), before, passage, behind, marks };
  }

  /**
   * Return the id of the node for a text, which is added if it isn't in the tree.
   * @param {{ before: string, passage?: string, behind?: string, marks?: string }} text
   * @returns {Promise<string>}
   */
  async write({ before, ...others }) {
    const node = this.tree.written(before, others);
    if (node.id === ROOT || (node.parent === ROOT && !node.pieces?.length && !node.passage))
      throw new Error(others.behind ? "Alternatives are written at the cursor. Write something before it." : "Write how your story begins.");
    return node.id ?? (await this.add(node)).id;
  }

  /**
   * Go to the node for a text that was taken, and show these nodes' alternatives. A writer who has typed or gone
   * elsewhere since stays there.
   * @param {Taken} taken
   * @param {string} id
   * @param {string[]} shown
   */
  settle({ place, text, draft }, id, shown) {
    const { story, tree } = this;
    const isHere = place === tree.current;
    const hasTyped = story.drafts.at(place) !== draft; // at that place
    if (tree.nodes.has(id)) this.growing.add(tree.nodes.get(id)); // saved together with the removal of the draft
    story.drafts.settle(place, text);
    this.undoHistory.steps.close();
    if (isHere) tree.go(hasTyped ? tree.current : id, shown);
    if (!hasTyped) this.undoHistory.steps.rename(place, { current: id, shown });
    this.show();
  }

  /**
   * Add a node of these fields. Adding it again before the store has it returns the same node.
   * @param {Partial<StoryNode>} fields
   * @returns {Promise<StoryNode>}
   */
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

  /**
   * Save what has changed. Resolves when it is saved or the failure is reported.
   * @param {...StoryNode} nodes
   */
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

  /** All that the writer enters elsewhere than in the text. */
  get #others() {
    return { beside: this.background.values, texts: this.compare.texts, directions: this.directions.value, ...this.editorChat.values, ...this.choices };
  }

  /** The settings that a new story starts with. */
  get choices() {
    return { settings: this.settings.values, compare: this.compare.values, editor: this.editorChat.choices };
  }

  /**
   * Save these nodes, and all that isn't in the tree. That is little, so it can follow every key.
   * @param {...StoryNode} nodes
   */
  savePage(...nodes) {
    return this.saving.save(PAGE, ...this.story.drafts.changes(), ...nodes);
  }

  /**
   * Take over what another tab has saved, and merge it with what this one has changed since.
   * @param {[place: string, text: string | undefined][]} drafts
   * @param {Record<string, any>} page
   * @param {Record<string, any>} [base] the last state that both have seen
   */
  takeOver(drafts, page, base = {}) {
    for (const [place, text] of drafts) this.#takeDraft(place, text, page.marks?.[place]);
    const now = this.#others;
    const theirs = { ...now, ...ofNames(page, Object.keys(now)) };
    const merged = this.#merge({ ...this.opened, ...ofNames(base, Object.keys(now)) }, now, theirs);
    const isNew = (name) => !same(merged[name], now[name]);
    if (isNew("beside")) this.takeBackground(merged.beside);
    if (isNew("texts")) this.compare.texts = merged.texts;
    if (isNew("settings")) this.settings.values = merged.settings;
    if (isNew("compare")) this.compare.values = merged.compare;
    if (isNew("directions")) followText(this.directions, merged.directions);
    if (isNew("question")) followText(this.editorChat.question, merged.question);
    if (isNew("conversation")) this.editorChat.conversation = merged.conversation;
    if (isNew("editor")) this.editorChat.choices = merged.editor;
    this.drawTree();
    this.measure();
    this.#followPlace();
    if (!same(merged, theirs)) this.savePage();
  }

  #merge(base, mine, theirs) {
    const [before, own, others] = [base, mine, theirs].map(({ beside, ...each }) => ({ each, beside: readBackground(beside) }));
    return { beside: merge(before.beside, own.beside, others.beside), ...merge(before.each, own.each, others.each, () => false) };
  }

  /**
   * Show memory, note and lore as they are after a merge.
   * @param {any} values
   */
  takeBackground(values) {
    const { versions } = this.background.values;
    this.background.values = values;
    if (newVersions(versions, values.versions).length) this.#sayBoth();
    this.#hideBoth();
    this.measure();
  }

  #sayBoth() {
    this.both = new Error("Memory, note or lore were changed in two tabs or on two devices. Both texts are kept: choose one under “What the model sees”.");
    showError(this.both);
  }

  #hideBoth() {
    if (this.both && !this.background.versions.all.length) hideError(this.both);
  }

  /**
   * Follow the writer to where another device is: at once if that is further along, else when this page is used next.
   * @param {{ current: string, shown: string[], cursor?: number } | null} place
   */
  moved(place) {
    this.elsewhere = place;
    this.#followPlace(document.hidden);
  }

  #followPlace(isAnywhere = false) {
    const { tree, elsewhere } = this;
    if (!elsewhere || ![elsewhere.current, ...elsewhere.shown].every((id) => tree.has(id))) return;
    const isOnTheWay = tree.current === ROOT || tree.path(elsewhere.current).some((each) => each.id === tree.current);
    if (!isAnywhere && (!isOnTheWay || this.#isTyped)) return;
    this.elsewhere = null;
    if (!tree.go(elsewhere.current, elsewhere.shown)) return; // not by the writer, so it can't be undone
    this.#draw();
    if (Number.isInteger(elsewhere.cursor)) this.story.goTo(elsewhere.cursor);
    this.save();
  }

  /** The writer has come back to this page. */
  resume() {
    this.#followPlace(true);
  }

  #takeDraft(place, text, marks) {
    const { tree, story } = this;
    if (story.drafts.at(place) === text) return;
    const isHere = place === tree.current;
    const stands = tree.text(place) + tree.after(place);
    const [before, shown] = [story.drafts.at(place) ?? stands, text ?? stands];
    story.drafts.follow(place, text, marks);
    const changes = difference(before, shown);
    this.undoHistory.steps.follow(place, changes);
    if (!isHere) return;
    story.follow(changes, text === undefined ? tree.marks(place) : unpackMarks(marks, shown.length));
    this.undoHistory.draw();
    this.wordCount.show(shown);
    this.chapters.draw();
    this.showOpenings();
  }

  /**
   * Keep both texts after this one and another tab's or device's have replaced the same draft. This one becomes a node,
   * where the writer goes on; the other one is the draft again.
   * @param {string} place
   * @param {string} theirs
   * @param {string} [marks] packed
   */
  split(place, theirs, marks) {
    return this.splitting.save([place, theirs, marks]);
  }

  async #split(place, theirs, marks) {
    const { tree, story } = this;
    const mine = story.drafts.at(place);
    if (!mine?.trim()) return this.#takeDraft(place, theirs, marks);
    const id = await this.write({ before: mine, marks: unpackMarks(story.drafts.marks(place), mine.length) });
    if (place === tree.current) {
      const text = tree.text(id) + tree.after(id);
      if (story.value !== text) story.drafts.put(id, story.value, () => packMarks(story.marks));
      this.undoHistory.steps.rename(place, { current: id, shown: [id] });
      tree.go(id);
      this.#draw();
    }
    story.drafts.put(place, theirs, () => marks);
    this.show();
    showError(new Error("The same text was changed in another tab or on another device. Both are kept: yours is in the box, and the other one is a draft in the tree (Story)."));
  }

  async #write(items) {
    const { current, shown } = this.tree;
    const { drafts, knows } = this.story.drafts.storing(items.filter((item) => typeof item === "string"));
    const marks = this.story.drafts.allMarks;
    const [, cursor] = this.story.selection;
    const page = { current, shown, cursor, words: this.wordCount.all, steps: this.undoHistory.steps.all, marks, untils: { ...this.untils }, ...this.#others };
    for (const [place, text] of await this.store.save(items.filter((item) => item.pieces), page, drafts, knows)) await this.split(place, text);
  }
}
