// @ts-check
// The text, in an editor (CodeMirror) as high as its content, whose document is the text and nothing else. Only this
// module changes it. To show another text, go to another place (drafts.js) or undo typing; so no feature can overwrite
// what was typed.

import { find } from "../lib/dom.js";
import { PASTED } from "../story/authorship.js";
import { Drafts } from "../story/drafts.js";
import { change, partsOf, refined } from "../story/text_merge.js";
import { ROOT } from "../story/tree.js";
import {
  ChangeSet, Decoration, deleteCharBackwardStrict, EditorState, EditorView, insertNewline, keymap, placeholder, standardKeymap,
} from "../vendor/codemirror.js";
import { markdownIn } from "./paste.js";
import { authors, by, DEVICE, marksOf, origin, packedMarks, setMarks, setShade, shade, STORY, UNDO } from "./tints.js";

/** @typedef {import("../vendor/codemirror.js").Transaction} Transaction */
/** @typedef {{ at: number, removed: string, added: string, marks: string }} Edit a part of a change, and who wrote what it removed */

const PASTES = ["input.paste", "input.drop", "move.drop"];
const EDGE = 80; // pixels at both ends of the window that the bar and the header may cover
const isTouched = matchMedia("(hover: none)"); // on a phone, the keyboard covers the page

/** Each paragraph starts on its own side: right in Hebrew and Arabic. */
const OWN_SIDE = Decoration.line({ attributes: { dir: "auto" } });
const ownSides = (/** @type {EditorView} */ { state: { doc }, viewport }) => {
  const ranges = [];
  for (let at = viewport.from; at <= viewport.to; at = doc.lineAt(at).to + 1) ranges.push(OWN_SIDE.range(doc.lineAt(at).from));
  return Decoration.set(ranges);
};

/** The changes that undo a transaction, and the marks of what these insert. */
function inverse({ changes, startState }) {
  const marks = partsOf(changes).map(({ from, to }) => marksOf(startState, from, to)).join("");
  return { changes: changes.invert(startState.doc).toJSON(), marks };
}

/** @returns {Edit[]} */
const editsOf = ({ changes, startState }) =>
  partsOf(changes).map(({ from, to, at, insert }) => ({ at, removed: startState.sliceDoc(from, to), added: insert.toString(), marks: marksOf(startState, from, to) }));

export class Manuscript {
  drafts = new Drafts();
  #copied = { text: "", marks: "" };
  #now = { doc: /** @type {any} */ (null), value: "", ranges: /** @type {any} */ (null), marks: "" }; // the last text and marks that were asked for
  /**
   * Called after the writer has changed the text, with the step that undoes it, its edits, and `by`, one mark or
   * several, who wrote what was added, if not the writer.
   * @param {{ kind: string, place: string, changes: any, marks: string }} _step
   * @param {{ edits: Edit[], by?: string, composing?: "start" | "on" }} _typed
   */
  step = (_step, _typed) => {};

  constructor() {
    const element = find("#manuscript");
    const { label, hint } = element.dataset;
    this.view = new EditorView({
      parent: element,
      extensions: [
        EditorState.lineSeparator.of("\n"), // other characters stay as they are
        EditorState.transactionExtender.of((transaction) => this.#pasted(transaction)),
        EditorView.clipboardInputFilter.of((text) => text.replace(/\r\n?/g, "\n")),
        EditorView.contentAttributes.of({ id: "story", "aria-label": label, spellcheck: "true", autocorrect: "on", autocapitalize: "sentences" }),
        EditorView.domEventHandlers({
          beforeinput: (event) => this.#typeOver(event),
          blur: () => this.#forgetSide(),
          copy: () => this.#copy(),
          cut: () => this.#copy(),
          dragstart: () => void this.#copy(),
          focus: () => this.#showSelection(),
          paste: (event) => this.#paste(event),
        }),
        EditorView.lineWrapping,
        EditorView.perLineTextDirection.of(true),
        EditorView.scrollMargins.of(() => ({ top: EDGE, bottom: EDGE })),
        EditorView.updateListener.of((update) => this.#update(update)),
        keymap.of([{ key: "Enter", run: insertNewline, shift: insertNewline }, { key: "Backspace", run: deleteCharBackwardStrict, shift: deleteCharBackwardStrict }]),
        keymap.of(standardKeymap),
        placeholder(hint),
        shade, authors, EditorView.decorations.of(ownSides), // the shade is above the tints
      ],
    });
    this.box = this.view.contentDOM;
    // Of the browser's own events, some come before the change and some not at all: see `#update`.
    element.addEventListener("input", (event) => event.isTrusted && event.stopPropagation(), true);
  }

  get value() {
    const { doc } = this.view.state;
    if (this.#now.doc !== doc) Object.assign(this.#now, { doc, value: doc.toString() });
    return this.#now.value;
  }

  get marks() {
    const ranges = this.view.state.field(authors);
    if (this.#now.ranges !== ranges) Object.assign(this.#now, { ranges, marks: marksOf(this.view.state) });
    return this.#now.marks;
  }

  marksOf(/** @type {number} */ from, /** @type {number} */ to) {
    return marksOf(this.view.state, from, to);
  }

  get parts() {
    const [, at] = this.selection;
    return { before: this.value.slice(0, at), behind: this.value.slice(at) };
  }

  get content() {
    return { text: this.value, marks: this.marks };
  }

  /**
   * The cursor or the selection, as [from, to].
   * @returns {[from: number, to: number]}
   */
  get selection() {
    const { from, to } = this.view.state.selection.main;
    return [from, to];
  }

  /**
   * Show a place: its draft, or else its text in the tree. Text in the box that isn't in the tree stays a draft.
   * @param {string} place
   * @param {number} behind how many characters of the tree's text are after the cursor
   */
  show(place, behind) {
    const before = this.value;
    const { text, marks } = this.drafts.go(place);
    if (text === before && marks === this.marks) return;
    const { treeText } = this.drafts;
    const at = treeText.length - behind;
    const anchor = cursorOf(text, treeText.slice(0, at), treeText.slice(at));
    const moved = text !== before && { changes: change(before, text), selection: { anchor } };
    this.view.dispatch({ ...moved, effects: setMarks.of(marks), annotations: origin.of(STORY) });
  }

  goTo(cursor) {
    this.view.dispatch({ selection: { anchor: Math.min(cursor, this.view.state.doc.length) } });
  }

  reveal(/** @type {number} */ at, /** @type {"nearest" | "start" | "center"} */ block) {
    this.view.dispatch({ effects: EditorView.scrollIntoView(Math.min(at, this.view.state.doc.length), { y: block, yMargin: EDGE }) });
  }

  /** The rectangle of a word on the screen; of its last part, if it wraps. */
  place(/** @type {number} */ from, /** @type {number} */ to) {
    const end = this.view.coordsAtPos(to, -1) ?? this.box.getBoundingClientRect();
    const start = this.view.coordsAtPos(from, 1) ?? end;
    const left = start.top === end.top ? start.left : this.box.getBoundingClientRect().left;
    const [first, last] = [left, end.right].sort((a, b) => a - b);
    return new DOMRect(first, end.top, last - first, end.bottom - end.top);
  }

  /** Shade a word and scroll to it. Resolves when the scrolling is done. */
  async bring(/** @type {number} */ from, /** @type {number} */ to) {
    this.shade(from, to);
    await new Promise(requestAnimationFrame);
    await new Promise(requestAnimationFrame);
  }

  /** Shade new text until the next key, and scroll to its end. */
  shade(/** @type {number} */ from, /** @type {number} */ to) {
    const scroll = from < to ? [EditorView.scrollIntoView(to, { y: "nearest", yMargin: EDGE })] : [];
    this.view.dispatch({ effects: [setShade.of({ from, to }), ...scroll] });
  }

  /** Replace the text, as if it had been typed. `mark` is who wrote it, as in authorship.js. */
  type(/** @type {string} */ text, /** @type {string} */ mark) {
    this.view.dispatch({ changes: change(this.value, text), selection: { anchor: text.length }, annotations: by.of(mark) });
  }

  /** Insert a text at the cursor. Without a `mark`, the writer wrote it. */
  insert(/** @type {string} */ text, mark = "") {
    const [, at] = this.selection;
    const to = at + text.length;
    this.view.dispatch({ changes: { from: at, insert: text }, selection: { anchor: to }, annotations: mark ? by.of(mark) : [] });
    this.shade(at, to);
  }

  /** Replace places of the text, ascending, in one step. Without a `mark`, the writer wrote what is there then. */
  replace(/** @type {number[][]} */ places, /** @type {string} */ text, mark = "") {
    const changes = this.view.state.changes(places.map(([from, to]) => ({ from, to, insert: text })));
    const anchor = changes.mapPos(places.at(-1)?.[1] ?? 0, 1);
    this.view.dispatch({ changes, selection: { anchor }, userEvent: "input.replace", annotations: mark ? by.of(mark) : [] });
  }

  /** Undo or redo a step. Returns its edits, and the step that takes it back; null if it was made of another text. */
  again(/** @type {{ changes: any, marks: string }} */ { changes, marks }) {
    const { state } = this.view;
    const known = ChangeSet.fromJSON(changes);
    if (known.length !== state.doc.length) return null;
    const { end: anchor } = partsOf(known).at(-1) ?? { end: 0 };
    const transaction = state.update({ changes: known, selection: { anchor }, annotations: [by.of(marks), origin.of(UNDO)], scrollIntoView: true });
    this.view.dispatch(transaction);
    return { back: inverse(transaction), edits: editsOf(transaction) };
  }

  /** Show what another tab or device has made of this text. Cursor and selection stay between the same characters. */
  follow(/** @type {ChangeSet} */ changes, /** @type {string} */ marks) {
    this.view.dispatch({ changes, effects: setMarks.of(marks), annotations: origin.of(DEVICE) });
  }

  async select(/** @type {number} */ from, /** @type {number} */ to) {
    this.view.dispatch({ selection: { anchor: from, head: to } });
    await this.bring(from, to);
  }

  #update({ transactions, selectionSet, changes, startState }) {
    const changed = transactions.filter(({ docChanged }) => docChanged);
    const own = changed.filter((each) => ![STORY, DEVICE].includes(each.annotation(origin)));
    if (own.length) this.drafts.type(this.value, () => packedMarks(this.view.state), refined(changes, startState.doc));
    for (const each of own) if (!each.annotation(origin)) this.#report(each);
    if (own.length) this.box.dispatchEvent(new Event("input", { bubbles: true }));
    else if (selectionSet) this.box.dispatchEvent(new Event("select", { bubbles: true }));
  }

  #report(/** @type {Transaction} */ transaction) {
    const isFirst = transaction.isUserEvent("input.type.compose.start");
    const composing = isFirst ? "start" : transaction.isUserEvent("input.type.compose") ? "on" : undefined;
    const kind = transaction.isUserEvent("input.replace") ? "replace" : "text";
    const step = { kind, place: this.drafts.place ?? ROOT, ...inverse(transaction) };
    this.step(step, { edits: editsOf(transaction), by: transaction.annotation(by), composing });
  }

  /** Say who wrote what is pasted. */
  #pasted(/** @type {Transaction} */ transaction) {
    if (!PASTES.some((each) => transaction.isUserEvent(each)) || transaction.annotation(by)) return null;
    const { text, marks } = this.#copied;
    const [added] = editsOf(transaction).filter((each) => each.added);
    return { annotations: by.of(added?.added === text ? marks : PASTED) };
  }

  /** Type over a selection: Chromium would do it with inline styles, which the page's policy forbids. */
  #typeOver(/** @type {InputEvent} */ event) {
    const selection = getSelection();
    const insert = event.inputType === "insertText" && !event.isComposing && event.data;
    if (!insert || !selection?.rangeCount || selection.isCollapsed) return false;
    let [from, to] = this.selection;
    if (from === to) { // not heard of yet
      const range = selection.getRangeAt(0);
      [from, to] = [this.view.posAtDOM(range.startContainer, range.startOffset), this.view.posAtDOM(range.endContainer, range.endOffset)];
    }
    this.view.dispatch({ changes: { from, to, insert }, selection: { anchor: from + insert.length }, userEvent: "input.type", scrollIntoView: true });
    return true;
  }

  #paste(/** @type {ClipboardEvent} */ event) {
    const text = markdownIn(event);
    if (!text) return false;
    this.view.dispatch(this.view.state.replaceSelection(text), { userEvent: "input.paste", scrollIntoView: true });
    return true;
  }

  /** Remember who wrote what is copied, for when it's pasted. Without a selection, nothing is copied. */
  #copy() {
    const [from, to] = this.selection;
    this.#copied = { text: this.view.state.sliceDoc(from, to), marks: marksOf(this.view.state, from, to) };
    return from === to;
  }

  /** Put the browser's cursor where the editor's is. A browser that gives the box the focus begins at the top. */
  #showSelection() {
    const { state, viewport } = this.view;
    const { anchor, head } = state.selection.main;
    if ([anchor, head].some((at) => at < viewport.from || at > viewport.to)) return;
    const [from, to] = [anchor, head].map((at) => this.view.domAtPos(at));
    document.getSelection()?.setBaseAndExtent(from.node, from.offset, to.node, to.offset);
  }

  /** Forget on which side of a wrap the cursor is: to draw it there, the editor would take the focus back. */
  #forgetSide() {
    const { main } = this.view.state.selection;
    if (main.empty && main.assoc) this.goTo(main.head);
  }

  focus() {
    this.view.focus();
  }

  /** Return to writing after something else was done on the page. */
  resume() {
    if (document.activeElement !== this.box && !isTouched.matches) this.focus();
  }
}

/** Where to put the cursor in a draft of a place with these texts before and after it. */
function cursorOf(draft, before, behind) {
  if (behind && draft.endsWith(behind)) return draft.length - behind.length;
  return behind && draft.startsWith(before) ? before.length : draft.length;
}
