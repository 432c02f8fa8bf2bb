// @ts-check
// The panels: the stories on the left, the others on the right, one open at a time; only in a wide window one on each
// side. In a narrow window they cover the text.

import { create, find, findAll, isFocusLost, leaveText } from "../lib/dom.js";
import { loadLocal, saveLocal } from "../lib/local_storage.js";

const isNarrow = matchMedia("(max-width: 60rem)"); // as in panels.css
const isWide = matchMedia("(min-width: 74rem)"); // leaves 30rem between two panels

export function drawHeads() {
  for (const dialog of findAll("dialog[data-title]")) {
    const title = create("h2", { id: `${dialog.id}-title`, textContent: dialog.dataset.title });
    dialog.prepend(create("form", { method: "dialog", className: "head" }, title, create("button", { textContent: "Close" })));
    dialog.setAttribute("aria-labelledby", title.id);
  }
}

/**
 * Connect a panel with the button that opens and closes it.
 * @param {string} id
 * @param {() => any} [onOpen] called after the panel opens
 * @param {() => any} [onLeave] called once when it closes, before the next key
 */
export function connectPanel(id, onOpen = () => {}, onLeave = () => {}) {
  const [button, dialog] = [find(`#open-${id}`), find(`#${id}`)];
  button.setAttribute("aria-expanded", "false");
  button.addEventListener("click", async () => {
    if (dialog.open) return dialog.close();
    const isThere = (other) => other.classList.contains("right") === dialog.classList.contains("right");
    for (const other of findAll(".panel[open]")) if (isThere(other) || !isWide.matches) other.close();
    leaveText(button);
    button.setAttribute("aria-expanded", "true");
    document.body.classList.add(`${id}-open`); // :has() would check the whole page at each key
    if (isNarrow.matches) dialog.showModal();
    else dialog.show();
    await onOpen();
  });
  const leave = () => {
    if (!document.body.classList.contains(`${id}-open`)) return;
    button.setAttribute("aria-expanded", "false");
    document.body.classList.remove(`${id}-open`);
    if (isFocusLost() || dialog.contains(document.activeElement)) (button.checkVisibility() ? button : find("#more-tools")).focus(); // the bar has folded
    onLeave();
  };
  dialog.addEventListener("close", leave);
  dialog.addEventListener("click", ({ target }) => target === dialog && dialog.matches(":modal") && dialog.close());
  dialog.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    dialog.close();
    leave(); // the next key may come before the event
  });
}

const FOLDS = "srb-folds";

export function rememberFolds() {
  for (const part of findAll("#stories details[id]")) {
    part.open = loadLocal(FOLDS)[part.id] ?? part.open;
    part.addEventListener("toggle", () => saveLocal(FOLDS, { ...loadLocal(FOLDS), [part.id]: part.open }));
  }
}
