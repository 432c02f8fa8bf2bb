// @ts-check
// Keyboard shortcuts for buttons. Letters work only where the writer can't be typing: on an alternative, the path,
// the tree and the list of stories.

import { pressCombine } from "../desk/combine.js";
import { create, find, findAll, focused } from "../lib/dom.js";
import { showStatus } from "../lib/messages.js";

const PLACES = ".card, #path, #tree, #drawing, #story-list";
const FIELDS = "input:not([type=checkbox]), textarea, select, [contenteditable=true]"; // these use letters themselves

const texts = () => findAll(".card .text");
const press = (button) => button && !button.disabled && button.click();

const at = () => focused().closest(".card")?.querySelector(".text");

const act = (name) => press(at()?.closest(".card")?.querySelector(`[value=${name}]`));

function walk(by) {
  const all = texts();
  const k = all.indexOf(at());
  all[Math.max(0, Math.min(all.length - 1, k < 0 ? 0 : k + by))]?.focus();
}

/** Discard an alternative, and move the keyboard to the next one. */
function discard() {
  const k = texts().indexOf(at());
  act("discard");
  (texts()[k] ?? texts().at(-1))?.focus();
}

/** Undo or redo by a letter, except typing: a writer who meant to type the letter would lose text. */
function again(button) {
  if (button.dataset.kind === "text") return showStatus(`Press ${button.title} in your text to undo or redo typing.`);
  press(button);
}

const keep = (number) => press(texts()[number - 1]?.closest(".card").querySelector("[value=keep]"));

/** @type {[keys: string, shown: string, description: string, act?: (key: string) => void][]} */
const KEYS = [
  ["123456789", "1 … 9", "keep that alternative", (key) => keep(Number(key))],
  ["j", "J", "go to the next alternative", () => walk(1)],
  ["k", "K", "go to the previous one", () => walk(-1)],
  ["m", "M", "more like this one", () => act("more")],
  ["f", "F", "add or remove a bookmark", () => act("favourite")],
  ["c", "C", "continue this one", () => act("continue")],
  ["d", "D", "discard this one", discard],
  ["h", "H", "go back to an earlier fork, where the model was least sure", () => press(find("#earlier:not([hidden])"))],
  ["i", "I", "combine: add sentences, or the selected passage, at the cursor", pressCombine],
  ["e", "E", "edit the text", () => find("#story").focus()],
  ["g", "G", "generate", () => press(find("#generate"))],
  ["b", "B", "bridge: write what leads to the text after the cursor", () => press(find("#bridge"))],
  ["s", "S", "stop", () => press(find("#stop"))],
  ["u", "U", "undo, except typing", () => again(find("#undo"))],
  ["r", "R", "redo, except typing", () => again(find("#redo"))],
  ["w", "W", "show or hide who wrote what", () => press(find("#tints"))],
  ["l", "L", "show or hide probabilities", () => press(find("#shades"))],
  ["a", "A", "ask an editor about your text", () => press(find("#open-ask"))],
  ["o", "O", "focus on the text; Esc leaves", () => press(find("#focus"))],
  ["x", "X", "explore likely continuations", () => press(find("#explore"))],
  ["v", "V", "what the model sees, with memory, note and lore", () => press(find("#open-model-view"))],
  ["t", "T", "the story and its tree", () => press(find("#open-stories"))],
  ["p", "P", "show the tree as a drawing or a list", () => press(find("#stories[open] #draw"))],
  [",", ",", "the settings", () => press(find("#open-options"))],
  ["/", "/", "search this story", () => press(find("#open-search"))],
  ["?", "?", "help: the tour, and these keys", () => press(find("#open-keys"))],
  ["", "Ctrl Enter", "generate at the cursor, also while you write"],
  ["", "Ctrl Alt Enter", "bridge: write what leads to the text after the cursor"],
  ["", "Ctrl Shift Enter", "rewrite the selected passage"],
  ["", "Ctrl .", "other words for the one at the cursor"],
  ["", "Ctrl Z, Ctrl Shift Z", "undo and redo, also while you write"],
  ["", "Ctrl F", "search this story, and replace"],
  ["", "Esc", "close what is open, or go to the first alternative or the path"],
  ["", "← →", "in an alternative: move from word to word; Enter opens the list of other words"],
];

export function listenToKeys() {
  for (const [, shown, does] of KEYS) find("#keys dl").append(create("dt", {}, create("kbd", {}, shown)), create("dd", {}, does));
  find("#open-keys").addEventListener("click", () => find("#keys").showModal());
  document.addEventListener("keydown", (event) => {
    const isOther = event.ctrlKey || event.metaKey || event.altKey || event.isComposing;
    if (isOther || event.defaultPrevented) return;
    const target = /** @type {Element} */ (event.target);
    const isThere = target.closest(PLACES);
    if (event.key.length === 1 && !isThere && target.closest(FIELDS)) return;
    if (find("dialog:modal")) return;
    const isFree = !isThere && !target.closest("dialog, #token-preview");
    // A letter that would be lost goes to the text. A space scrolls the page or presses a button.
    const isTyped = event.key.length === 1 && event.key !== " ";
    if (isTyped && !isThere && !target.closest("#token-preview")) return find("#story").focus({ preventScroll: true });
    if (event.key === "Escape" && isFree) (texts()[0] ?? find("#path [aria-current]")).focus();
    const found = KEYS.find(([keys]) => event.key.length === 1 && keys.includes(event.key.toLowerCase()));
    if (!found || !isThere) return;
    event.preventDefault();
    found[3]?.(event.key);
  });
}

/** Keep the keyboard in the text when a button around it is pressed with the mouse. */
export function keepFocus(/** @type {HTMLElement} */ box, /** @type {HTMLElement} */ around) {
  around.addEventListener("mousedown", (event) => {
    if (document.activeElement === box && /** @type {Element} */ (event.target).closest("button, .actions")) event.preventDefault();
  });
}

/** Use the page's own undo and redo in the text, for keys and for the browser's menus. */
export function listenToUndo(/** @type {HTMLElement} */ box, /** @type {(name: string) => void} */ again) {
  box.addEventListener("keydown", (event) => {
    const key = event.key.toLowerCase();
    if (!(event.ctrlKey || event.metaKey) || event.altKey || !["z", "y"].includes(key)) return;
    event.preventDefault();
    again(key === "y" || event.shiftKey ? "redo" : "undo");
  });
  box.addEventListener("beforeinput", (event) => {
    const name = { historyUndo: "undo", historyRedo: "redo" }[event.inputType];
    if (!name) return;
    event.preventDefault();
    again(name);
  });
}
