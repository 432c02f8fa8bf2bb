// @ts-check
// Shows in a box what was written elsewhere.

import { difference } from "../story/text_merge.js";

/** Show a text in a box. The cursor stays between the same letters. */
export function followText(box, /** @type {string | number} */ value) {
  const text = String(value);
  if (box.value === text) return;
  if (!["text", "textarea"].includes(box.type)) return void (box.value = text);
  const changes = difference(box.value, text);
  const [start, end] = [changes.mapPos(box.selectionStart, box.selectionStart < box.selectionEnd ? 1 : -1), changes.mapPos(box.selectionEnd, -1)];
  const { scrollTop } = box;
  box.value = text;
  box.setSelectionRange(Math.min(start, end), end, box.selectionDirection);
  box.scrollTop = scrollTop;
}
