// @ts-check
// Finding, making and enabling elements, the keyboard focus, and composing.

const LONGEST = 5000; // milliseconds; a phone may compose a word for as long as the cursor is in it

/** Find the first element that matches a selector. Its kind depends on that, so it has no type. @returns {any} */
export const find = (selector, root = /** @type {ParentNode} */ (document)) => root.querySelector(selector);

/** Find all elements that match a selector, as an array. @returns {any[]} */
export const findAll = (selector, root = /** @type {ParentNode} */ (document)) => [...root.querySelectorAll(selector)];

/** The element that has the keyboard. */
export const focused = () => /** @type {HTMLElement & { disabled?: boolean }} */ (document.activeElement);

/** Make an element with these properties and children. `style` sets variables. @returns {any} */
export function create(tag, /** @type {Record<string, any>} */ { dataset, style = {}, ...fields }, ...children) {
  const element = Object.assign(document.createElement(tag), fields);
  Object.assign(element.dataset, dataset);
  for (const [name, value] of Object.entries(style)) element.style.setProperty(name, value);
  element.append(...children);
  return element;
}

/** Enable a button while something can be done at the cursor or with the selection. */
export function enableWhile(button, isPossible) {
  const draw = () => (button.disabled = !isPossible());
  for (const name of ["select", "input", "change"]) document.addEventListener(name, draw);
  document.addEventListener("keydown", ({ ctrlKey, metaKey }) => (ctrlKey || metaKey) && draw(), true); // a shortcut may come before the event above
  draw();
}

/** Whether the focused element has gone or was disabled. */
export function isFocusLost() {
  const at = focused();
  return at === document.body || at.disabled || at.hidden;
}

/**
 * Take the focus out of a text before a dialog opens. Chromium returns there when the dialog closes, but to the
 * beginning of the text.
 */
export function leaveText(button) {
  if (!focused().matches("textarea, [contenteditable=true]")) return;
  if (button.checkVisibility()) button.focus({ preventScroll: true });
  else focused().blur();
}

/** Replace the items of a list. The focus stays at its place. */
export function replaceItems(list, items) {
  const place = list.contains(document.activeElement) ? focused().dataset.place : null;
  list.replaceChildren(...items);
  if (place) find(`[data-place="${place}"]`, list)?.focus({ preventScroll: true });
}

/** Set the children of an element. Children that stay keep their scroll position and the keyboard. */
export function arrange(element, children) {
  const staying = new Set(children);
  for (const child of [...element.children]) if (!staying.has(child)) child.remove();
  children.forEach((child, k) => {
    if (element.children[k] !== child) element.insertBefore(child, element.children[k] ?? null);
  });
}

/** Resolve when no letter is being composed, by a dead key or an input method: a change of its text would end that. */
export const compositionEnd = () =>
  new Promise((resolve) => {
    const { composedAt = 0 } = /** @type {any} */ (globalThis).early ?? {};
    const left = composedAt && composedAt + LONGEST - performance.now();
    if (left <= 0) return resolve(null);
    addEventListener("compositionend", resolve, { once: true });
    setTimeout(resolve, left);
  });
