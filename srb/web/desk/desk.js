// @ts-check
// The writer's desk: the story's tree, the current place, and the text that is being written.

import { find, isFocusLost } from "../lib/dom.js";
import { saveMessages, showError, showStatus } from "../lib/messages.js";
import { SaveQueue } from "../lib/save_queue.js";
import { Compare } from "../settings/compare.js";
import { followText } from "../settings/follow_text.js";
import { MODEL, packMarks } from "../story/authorship.js";
import { Store } from "../story/browser_store.js";
import { fitted } from "../story/conversation.js";
import { Drafts } from "../story/drafts.js";
import { Steps } from "../story/edits.js";
import { applyLengthLimits } from "../story/generation.js";
import { placeIn, spaceBetween } from "../story/keeping.js";
import { readBackground } from "../story/lorebook.js";
import { merge, same } from "../story/merging.js";
import { gap, ROOT, textOf, Tree } from "../story/tree.js";
import { repair } from "../story/validation.js";
import { Background } from "./background.js";
import { Cards } from "./cards.js";
import { Chapters } from "./chapters.js";
import { Cliches } from "./cliches.js";
import { Combine } from "./combine.js";
import { ContextWindow } from "./context_window.js";
import { Directions } from "./directions.js";
import { EditorChat } from "./editor_chat.js";
import { Explorer } from "./explorer.js";
import { Forks } from "./forks.js";
import { OtherWords } from "./other_words.js";
import { Probabilities } from "./probabilities.js";
import { PromptView } from "./prompt_view.js";
import { Rewriter } from "./rewriter.js";
import { SearchPanel } from "./search_panel.js";
import { Snapshots } from "./snapshots.js";
import { drawStatistics } from "./statistics.js";
import { TokenPreview } from "./token_preview.js";
import { TreeDrawing } from "./tree_drawing.js";
import { drawPath } from "./tree_list.js";
import { UndoHistory } from "./undo_history.js";
import { Versions } from "./versions.js";
import { WordCount } from "./word_count.js";
import { Writing } from "./writing.js";

/** @typedef {import("../story/tree.js").StoryNode} StoryNode */
/** @typedef {ReturnType<Desk["take"]>} Taken the text at one moment, split at the cursor or around a selection */

const SAVE_MILLISECONDS = 5000; // while alternatives are running
const REST_MILLISECONDS = 400; // after the last key
const PAGE = Symbol("all that isn't in the tree, but for drafts");

/** Among all that isn't in the text, what is merged word by word. Of anything else, the last change wins. */
const TEXTS = ["beside", "texts", "directions", "question"];

const lastOf = (mine, theirs) => (theirs.includes(mine) ? theirs : mine);

export class Desk {
  tree = new Tree();
  store = new Store();
  saving = new SaveQueue((items) => this.#write(items), saveMessages("What you wrote last"));
  elsewhere = /** @type {{ current: string, shown: string[], cursor?: number } | null} */ (null); // where the writer is on another device
  opened = /** @type {Record<string, any>} */ ({}); // `shared` as it was read
  growing = new Set(); // nodes to save soon
  typing = /** @type {Promise<void> | null} */ (null); // saving what was typed
  hasTyped = false; // since that began
  untils = {}; // by request
  adding = new Map(); // nodes that are being added, by their fields
  added = new Set(); // nodes that this page has added

  /**
   * @param {import("../settings/settings.js").Settings} settings
   * @param {import("./manuscript.js").Manuscript} story
   * @param {number} [size] of the context
   */
  constructor(settings, story, size) {
    this.settings = settings;
    this.story = story;
    this.compare = new Compare(settings, story);
    this.undoHistory = new UndoHistory(this);
    this.wordCount = new WordCount();
    story.step = (step, typed) => {
      this.elsewhere = null;
      this.wordCount.typed(story, typed);
      this.undoHistory.push(step, typed);
    };
    this.chapters = new Chapters(story);
    this.background = new Background(() => this.drawLater());
    this.context = new ContextWindow(this.background, size);
    this.promptView = new PromptView(this);
    this.editorChat = new EditorChat(this);
    this.searchPanel = new SearchPanel(this);
    this.snapshots = new Snapshots(this);
    this.cliches = new Cliches(this);
    this.treeDrawing = new TreeDrawing(this);
    this.writing = new Writing(this);
    this.cards = new Cards(this);
    this.versions = new Versions(this);
    this.probabilities = new Probabilities(this);
    this.tokenPreview = new TokenPreview(this);
    this.forks = new Forks(this);
    this.combine = new Combine(this);
    this.otherWords = new OtherWords(this);
    this.explorer = new Explorer(this);
    this.directions = new Directions(this);
    this.rewriter = new Rewriter(this);
  }

  async open(/** @type {Store} */ store) {
    const { nodes, page, drafts } = await store.load();
    const repaired = repair(nodes);
    const { untils, late } = applyLengthLimits(nodes, page.untils);
    this.growing = new Set([...repaired, ...late]); // saved as they are now
    if (repaired.length) showError(new Error(`Parts of ${repaired.length} texts of this story couldn't be read and were left out.`));
    this.store = store;
    this.untils = untils;
    const tree = (this.tree = new Tree(nodes, page.current));
    if (page.shown?.every((id) => tree.has(id))) tree.shown = page.shown;
    this.undoHistory.steps = new Steps(page.steps);
    const { settings = {}, texts = [], compare = {}, conversation = [], question = "", directions = "", beside = {}, editor = {} } = page;
    this.#show({ settings, texts, compare, conversation, question, directions, beside, editor });
    this.opened = this.shared;
    this.story.drafts = new Drafts(drafts, (place) => ({ text: tree.text(place) + tree.after(place), marks: tree.marks(place) }));
    await store.begin(this);
    this.#draw();
    if (Number.isInteger(page.cursor)) this.story.goTo(page.cursor);
    if (store.isShared && nodes.length) this.#follow(nodes.at(-1));
  }

  /** End the alternatives of a request at this length. A shared store doesn't know the length. */
  limit(/** @type {string} */ request, /** @type {import("../story/tree.js").Until} */ until) {
    this.untils[request] = until;
    for (const node of this.tree.nodes.values()) if (node.request === request) node.until = until;
  }

  /** Merge a node that a shared store reported. While its request runs here, the request's own events decide. */
  merge(/** @type {StoryNode} */ reported) {
    const { pieces, healed, ...said } = reported; // `healed` is known where the request was read
    const node = this.tree.add(reported);
    node.until ??= this.untils[node.request];
    const { kept, discarded, name, endsAt } = reported;
    // The alternative was cut here, and the store doesn't know that yet: its text may be longer.
    const isEndedHere = node.endsAt !== undefined && endsAt === undefined && node.request === reported.request;
    if (isEndedHere) Object.assign(node, { kept, discarded, name });
    else if (this.writing.isRunning(node) || reported.end === undefined) Object.assign(node, { kept, discarded, name, endsAt });
    else {
      if (textOf(node) !== textOf(reported)) {
        Object.assign(node, { pieces, healed });
        this.cards.redraw(node);
      }
      Object.assign(node, said);
    }
    return node;
  }

  /** @param {StoryNode} node the last of them */
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
    if (this.added.has(node) || id === tree.current || !isOnTheWay || this.cards.cards.size || this.#isTyped) return;
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
    this.story.show(tree.current, tree.after(tree.current).length);
    this.wordCount.show(this.story.value);
    this.chapters.draw();
    this.drawLater();
    drawPath(this);
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
    if (find("#statistics").open) drawStatistics(this.tree);
  }

  showOpenings() {
    find("#openings").hidden = this.tree.nodes.size > 0 || this.story.value !== "";
  }

  /** Draw what takes long to compute of the text and the cursor, once the writer pauses. */
  drawLater() {
    clearTimeout(this.resting);
    this.resting = setTimeout(() => {
      const { tree } = this;
      const { before, behind } = this.story.parts;
      const ids = before === tree.text(tree.current) ? tree.prompt(tree.current) : null;
      this.context.draw(before, { isWhole: !behind.trim(), ids: Array.isArray(ids) ? ids : undefined });
      this.promptView.draw(before);
      this.chapters.draw();
      this.searchPanel.count();
    }, REST_MILLISECONDS);
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

  /** Go to a place, or to the place where an alternative is shown, and focus it. A discarded one is restored. */
  visit(/** @type {StoryNode} */ node) {
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

  /** Continue from the end of a node, which may be replacing what comes after it in the text. */
  keep(/** @type {StoryNode} */ node, { isReplacing = false } = {}) {
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

  /** Insert a passage at the cursor, in one step. `fit` adds space around it. */
  insert(/** @type {string} */ passage, fit = fitted) {
    const { steps } = this.undoHistory;
    const { before, behind } = this.story.parts;
    steps.close();
    this.story.insert(fit(before, passage, behind), MODEL);
    steps.close();
  }

  discard(node) {
    node.discarded = true;
    this.undoHistory.push({ kind: "discard", node: node.id });
    this.growing.add(node);
    this.show();
  }

  /** Return the text as it is now, split at the cursor or around a selection, for `write` and `settle`. */
  take([from, to] = [this.story.selection[1], this.story.selection[1]]) {
    const { value: text, marks } = this.story;
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
   */
  settle(/** @type {Taken} */ { place, text, draft }, /** @type {string} */ id, /** @type {string[]} */ shown) {
    const { story, tree } = this;
    const isHere = place === tree.current;
    const hasTyped = story.drafts.at(place) !== draft; // at that place
    if (tree.nodes.has(id)) this.growing.add(tree.nodes.get(id)); // saved together with the removal of the draft
    story.drafts.settle(place, text, id);
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
    this.added.add(node);
    this.save(node);
    return node;
  }

  /** Save what has changed. Resolves when it is saved or the failure is reported. */
  save(/** @type {StoryNode[]} */ ...nodes) {
    clearTimeout(this.saver);
    this.saver = null;
    const changed = new Set([...this.growing, ...nodes]);
    this.growing.clear();
    return this.savePage(...changed);
  }

  saveLater(node) {
    this.growing.add(node);
    this.saver ??= setTimeout(() => this.save(), SAVE_MILLISECONDS);
  }

  /** Save what was typed, after the last such save: one that takes longer than a key saves several keys. */
  saveTyped() {
    this.hasTyped = true;
    this.typing ??= this.#saveTyped().finally(() => (this.typing = null));
  }

  async #saveTyped() {
    while (this.hasTyped) {
      this.hasTyped = false;
      await this.savePage();
    }
  }

  get drafts() {
    return this.story.drafts;
  }

  /** Where the writer is, and what could be undone. */
  get own() {
    return { ...this.state, cursor: this.story.selection[1], words: this.wordCount.all, steps: this.undoHistory.steps.all, untils: { ...this.untils } };
  }

  /** All that the writer enters elsewhere than in the text. */
  get shared() {
    return { beside: this.background.values, texts: this.compare.texts, directions: this.directions.box.value, ...this.editorChat.values, ...this.choices };
  }

  /** The settings that a new story starts with. */
  get choices() {
    return { settings: this.settings.values, compare: this.compare.values, editor: this.editorChat.choices };
  }

  /** Save these nodes, and all that isn't in the tree. */
  savePage(/** @type {StoryNode[]} */ ...nodes) {
    return this.saving.save(PAGE, ...this.story.drafts.changes(), ...nodes);
  }

  /** Merge some of `shared` with what others have made of its `base`. The cursors stay where they are. */
  meet(/** @type {Record<string, any>} */ base, /** @type {Record<string, any>} */ theirs) {
    const now = this.shared;
    const names = Object.keys(now).filter((name) => name in theirs && !same(now[name], theirs[name]));
    const merged = (name) => {
      const [before, mine, others] = [{ ...this.opened, ...base }, now, theirs].map((each) => (name === "beside" ? readBackground(each[name]) : each[name]));
      return merge(before, mine, others, TEXTS.includes(name) ? undefined : lastOf);
    };
    const news = names.map((name) => [name, merged(name)]).filter(([name, value]) => !same(value, now[name]));
    if (!news.length) return;
    this.#show(Object.fromEntries(news));
    this.drawTree();
    this.drawLater();
  }

  #show(values) {
    const { beside, texts, settings, compare, directions, question, conversation, editor } = values;
    if (beside) this.background.values = beside;
    if (texts) this.compare.texts = texts;
    if (settings) this.settings.values = settings;
    if (compare) this.compare.values = compare;
    if (directions !== undefined) followText(this.directions.box, directions);
    if (question !== undefined) followText(this.editorChat.question, question);
    if (conversation) this.editorChat.conversation = conversation;
    if (editor) this.editorChat.choices = editor;
  }

  /** Follow the writer to where another device is: at once if that is further along, else when this page is used next. */
  moved(/** @type {Desk["elsewhere"]} */ place) {
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
    if (typeof elsewhere.cursor === "number") this.story.goTo(elsewhere.cursor);
    this.save();
  }

  resume() {
    this.#followPlace(true);
  }

  /**
   * Merge what another tab or device has made of a draft. The cursor stays between the same letters.
   * @param {string} place
   * @param {import("../story/drafts.js").Draft | undefined} base what both have changed
   * @param {import("../story/drafts.js").Draft | undefined} theirs
   * @param {any[]} [unsent] as in `Drafts.meet`
   */
  meetDraft(place, base, theirs, unsent) {
    const { tree, story, undoHistory } = this;
    const met = story.drafts.meet(place, base, theirs, unsent);
    if (!met) return;
    for (const [each, changes] of met.changes) undoHistory.steps.follow(each, changes);
    const { into } = met;
    if (into !== undefined) undoHistory.steps.rename(place, { current: into, shown: [into] });
    for (const each of met.changes.keys()) if (each !== place) this.saving.save(PAGE, { met: each });
    const changes = met.changes.get(tree.current);
    const isMoved = into !== undefined && tree.current === place;
    if (isMoved) {
      tree.go(into, [into]);
      this.store.knownPlace = this.state; // not by the writer
    }
    if (!changes || story.drafts.place === null) return; // nothing is shown yet
    const { text, marks } = story.drafts.go(tree.current);
    story.follow(changes, marks);
    if (isMoved) return this.#draw();
    undoHistory.draw();
    this.wordCount.show(text);
    this.showOpenings();
    this.drawLater();
  }

  #write(items) {
    const typed = items.filter((item) => typeof item === "string");
    const met = items.flatMap((item) => item.met ?? []);
    return this.store.save(items.filter((item) => item.pieces), [...typed, ...met], typed.length > 0);
  }

  leave() {
    this.store.leave([...this.growing]);
  }
}
