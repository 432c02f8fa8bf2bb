// @ts-check
// What the model sees, as parts: the text of a story, and what stands beside it. Pure.
//
// A part is {origin, name, text}: of the `memory`, the `lore`, the author's `note` or the `story`. What changes often stands late,
// so that what is before it needs no evaluation.

import { DEPTH } from "./lorebook.js";

// Where the paragraphs of a text begin.
const paragraphs = (text) => Array.from(text.matchAll(/^.*\S/gm), ({ index }) => index);

// The line breaks before a place in a text.
function breaks(text, place) {
  let start = place;
  while (text[start - 1] === "\n") start--;
  return text.slice(start, place) || "\n\n";
}

// Where a text begins of which at least so many letters are left out: at a paragraph, or at a word where that is far away.
export function beginning(text, least) {
  const place = paragraphs(text).find((start) => start >= least) ?? text.length;
  if (place - least <= (text.length - least) / 4) return place;
  const space = text.slice(least).search(/\s\S/);
  return space < 0 ? least : least + space + 1;
}

// All that the model sees: {parts, place}, where nothing comes between the letters of the text behind `place`. from: where the text
// begins. entries: those of the lorebook that apply.
export function arrangePrompt({ text, from = 0, memory = "", note = "", depth = DEPTH, entries = [] }) {
  const starts = paragraphs(text);
  const late = (count) => Math.max(from, starts.at(-count) ?? 0);
  const lore = entries.map((entry) => ({ origin: "lore", name: entry.name || entry.keys, text: entry.text, depth: entry.depth }));
  const beside = [{ origin: "memory", text: memory, depth: null }, ...lore, { origin: "note", text: note, depth }];
  const told = beside.map((part) => ({ ...part, text: part.text.trim() })).filter((part) => part.text);
  const parts = told.filter((part) => part.depth === null).map(({ depth: _, ...part }) => ({ ...part, text: `${part.text}\n\n` }));
  let place = from;
  const story = (to) => {
    if (to > place) parts.push({ origin: "story", text: text.slice(place, to) });
    place = to;
  };
  for (const { depth: count, ...part } of told.filter((each) => each.depth !== null).toSorted((a, b) => b.depth - a.depth)) {
    story(late(count));
    parts.push({ ...part, text: part.text + breaks(text, place) });
  }
  const last = place;
  story(text.length);
  return { parts, place: last };
}

// The tokens at the end of a text that were drawn, and so need no tokenizing: {ids, letters, isHealed}. drawn: as Tree.generated has it.
// place: they must stand behind it.
export function tailTokens(text, place, { pieces, isHealed }) {
  let start = text.length - pieces.reduce((sum, piece) => sum + piece.text.length, 0);
  let k = 0;
  while (k < pieces.length && (start < place || (isHealed && !k && start === place))) start += pieces[k++].text.length;
  return { ids: pieces.slice(k).flatMap((piece) => piece.ids), letters: text.length - start, isHealed: isHealed && !k };
}
