// @ts-check
// Keeping an alternative in a text that the writer has changed meanwhile.

const ANCHOR = 40; // characters before the cursor that lead to its place in a changed text

/**
 * Return where an alternative goes in a text that was changed since it was asked for: at the cursor of that time,
 * wherever that is now. What was typed there since comes after it.
 * @param {string} text
 * @param {{ before: string, passage?: string, behind?: string }} then the text at that time; the alternative replaces
 *   the passage
 * @returns {[from: number, to: number] | null} null if the writer has changed the text around it or the passage
 */
export function placeIn(text, { before, passage = "", behind = "" }) {
  const at = cursorIn(text, before, passage + behind);
  return at >= 0 && text.startsWith(passage, at) ? [at, at + passage.length] : null;
}

function cursorIn(text, before, after) {
  if (text.startsWith(before)) return before.length;
  if (after && text.endsWith(after)) return text.length - after.length;
  const anchor = before.slice(-ANCHOR);
  const expected = before.length - anchor.length;
  const found = [text.lastIndexOf(anchor, expected), text.indexOf(anchor, expected)].filter((at) => at >= 0);
  const [nearest = -1] = found.sort((a, b) => Math.abs(a - expected) - Math.abs(b - expected));
  return nearest < 0 ? -1 : nearest + anchor.length;
}

/** Return the space between an alternative and what was typed after it, where two words would meet. */
export const spaceBetween = (own, rest) => (/[\p{L}\p{N},;:.!?…”’»)]$/u.test(own) && /^[\p{L}\p{N}“‘«(]/u.test(rest) ? " " : "");
