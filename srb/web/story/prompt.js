// @ts-check
// What the model sees, as parts {origin, name, text}. The origin is `memory`, `lore`, the author's `note` or the
// `story`. Parts that change often come late, so that the text before them stays cached.

import { DEPTH } from "./lorebook.js";

/** Return where the paragraphs of a text start. */
const paragraphs = (text) => Array.from(text.matchAll(/^.*\S/gm), ({ index }) => index);

/** The line breaks before a place in a text. */
function breaks(text, place) {
  let start = place;
  while (text[start - 1] === "\n") start--;
  return text.slice(start, place) || "\n\n";
}

/**
 * Return where to start a text of which at least `least` characters are dropped: at a paragraph, or at a word if no
 * paragraph is near.
 */
export function beginning(text, least) {
  const place = paragraphs(text).find((start) => start >= least) ?? text.length;
  if (place - least <= (text.length - least) / 4) return place;
  const space = text.slice(least).search(/\s\S/);
  return space < 0 ? least : least + space + 1;
}

/**
 * Arrange all that the model sees.
 * @param {{ text: string, from?: number, memory?: string, note?: string, depth?: number, entries?: any[] }} content
 *   the text starts at `from`; `entries` are those that apply
 * @returns {{ parts: { origin: string, name?: string, text: string }[], place: number }} nothing interrupts the text
 *   after `place`
 */
export function arrangePrompt({ text, from = 0, memory = "", note = "", depth = DEPTH, entries = [] }) {
  const starts = paragraphs(text);
  const late = (count) => Math.max(from, starts.at(-count) ?? 0);
  const lore = entries.map((entry) => ({ origin: "lore", name: entry.name || entry.keys, text: entry.text, depth: entry.depth }));
  const background = [{ origin: "memory", text: memory, depth: null }, ...lore, { origin: "note", text: note, depth }];
  const present = background.map((part) => ({ ...part, text: part.text.trim() })).filter((part) => part.text);
  const parts = present.filter((part) => part.depth === null).map(({ depth: _, ...part }) => ({ ...part, text: `${part.text}\n\n` }));
  let place = from;
  const story = (to) => {
    if (to > place) parts.push({ origin: "story", text: text.slice(place, to) });
    place = to;
  };
  for (const { depth: count, ...part } of present.filter((each) => each.depth !== null).toSorted((a, b) => b.depth - a.depth)) {
    story(late(count));
    parts.push({ ...part, text: part.text + breaks(text, place) });
  }
  const last = place;
  story(text.length);
  return { parts, place: last };
}

/**
 * Return the sampled tokens at the end of a text, which needn't be tokenized.
 * @param {string} text
 * @param {number} place they must be after it
 * @param {{ pieces: import("./tree.js").Piece[], isHealed: boolean }} generated as `Tree.generated` returns it
 * @returns {{ ids: number[], letters: number, isHealed: boolean }} `letters` counts their characters
 */
export function tailTokens(text, place, { pieces, isHealed }) {
  let start = text.length - pieces.reduce((sum, piece) => sum + piece.text.length, 0);
  let k = 0;
  while (k < pieces.length && (start < place || (isHealed && !k && start === place))) start += pieces[k++].text.length;
  return { ids: pieces.slice(k).flatMap((piece) => piece.ids ?? []), letters: text.length - start, isHealed: isHealed && !k };
}
