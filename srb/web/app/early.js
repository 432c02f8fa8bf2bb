// @ts-check
// What is typed while no story is open: as the page loads, and on the way to another story. An inline script of
// index.html keeps it in a box of its own.

import { compositionEnd, find, findAll } from "../lib/dom.js";

const LOOK = 100; // milliseconds that a writer takes to type on
const REST = 300; // milliseconds without a key

const { early } = /** @type {any} */ (globalThis);

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

export async function showDesk(/** @type {import("../desk/manuscript.js").Manuscript} */ story) {
  await compositionEnd();
  const text = early.box.value;
  find("#desk").inert = false;
  document.body.dataset.ready = "true";
  if (text) story.insert(text); // which saves it; before the focus, or a browser tells the editor an older cursor
  if (document.activeElement === early.box) {
    early.box.blur();
    story.resume();
  }
  early.box.value = "";
  sessionStorage.removeItem("srb-early");
}

/** Hide the story, and take what is typed for the next one. */
export function hideDesk() {
  for (const dialog of findAll("dialog:modal")) dialog.close();
  delete document.body.dataset.ready;
  find("#desk").inert = true;
  early.show();
}

/** Resolve when nobody types: a browser loses the keys of some 20 ms while it goes from one page to the next. */
export async function rest(first = LOOK) {
  await pause(first);
  while (performance.now() - early.at < REST) await pause(LOOK);
}

// A reload waits for that, too: worker.js answers when this lock is free. A page that asks for it at the reload may come
// after the worker.
let isTyping = false;
addEventListener("input", async () => {
  if (isTyping) return;
  isTyping = true;
  await navigator.locks?.request("srb-rest", () => rest(0));
  isTyping = false;
});
