// @ts-check
// Elements of the page that are made by a program.

/**
 * Find the first element that matches a selector. Its kind depends on the selector, so it has no type.
 * @param {string} selector
 * @param {ParentNode} [root]
 * @returns {any}
 */
export const find = (selector, root = document) => root.querySelector(selector);

/**
 * Find all elements that match a selector, as an array.
 * @param {string} selector
 * @param {ParentNode} [root]
 * @returns {any[]}
 */
export const findAll = (selector, root = document) => [...root.querySelectorAll(selector)];

/** The element that has the keyboard. */
export const focused = () => /** @type {HTMLElement & { disabled?: boolean }} */ (document.activeElement);

// An element with these properties and children, which may be texts.
export function create(tag, fields, ...children) {
  const element = Object.assign(document.createElement(tag), fields);
  element.append(...children);
  return element;
}

// Whether what had the keyboard is gone, or can't have it any more.
export function isFocusLost() {
  const at = focused();
  return at === document.body || at.disabled || at.hidden;
}

// Takes the keyboard out of a text before a dialog opens: Chromium goes back to where it was when that closes, and in a text to its beginning.
export function leaveText(button) {
  if (document.activeElement.matches("textarea")) button.focus({ preventScroll: true });
}

// Draws a list anew; the keyboard stays where it was.
export function replaceItems(list, items) {
  const place = list.contains(document.activeElement) ? focused().dataset.place : null;
  list.replaceChildren(...items);
  if (place) list.querySelector(`[data-place="${place}"]`)?.focus({ preventScroll: true });
}
