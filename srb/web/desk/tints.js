// @ts-check
// Who wrote each character, as ranges that move with the text and tint it, and the shade of new text. The editor draws
// those in sight.

import { CHANGED, MODEL, ownMark, PASTED, runs, WRITER } from "../story/authorship.js";
import { Annotation, Decoration, EditorView, StateEffect, StateField } from "../vendor/codemirror.js";

/** @typedef {import("../vendor/codemirror.js").EditorState} EditorState */

const NAMES = { [WRITER]: "writer", [PASTED]: "writer", [MODEL]: "model", [CHANGED]: "changed" };

const TINTS = Object.fromEntries(Object.entries(NAMES).map(([mark, name]) => [mark, Decoration.mark({ class: name, mark })]));
const FRESH = Decoration.mark({ class: "fresh" });

/** Whose change of the text this is, if not the writer's: `STORY` shows a place, `DEVICE` follows another one. */
export const origin = /** @type {import("../vendor/codemirror.js").AnnotationType<string>} */ (Annotation.define());
export const [STORY, DEVICE, UNDO] = ["story", "device", "undo"];

/** Who wrote what a change adds: one mark, or one for each character. Without it, the writer. */
export const by = /** @type {import("../vendor/codemirror.js").AnnotationType<string>} */ (Annotation.define());

export const setMarks = /** @type {import("../vendor/codemirror.js").StateEffectType<string>} */ (StateEffect.define());

/** Shades a part of the text until the next key. */
export const setShade = /** @type {import("../vendor/codemirror.js").StateEffectType<{ from: number, to: number }>} */ (StateEffect.define());

const rangesOf = (all) => all.map(([mark, from, to]) => TINTS[mark].range(from, to));

function marksBetween(ranges, from, to) {
  const parts = /** @type {string[]} */ ([]);
  ranges.between(from, to, (start, end, { spec }) => void parts.push(spec.mark.repeat(Math.max(0, Math.min(end, to) - Math.max(start, from)))));
  return parts.join("");
}

/** Put marks in place of those of their part of the text. */
function put(ranges, from, marks) {
  const to = from + marks.length;
  const all = runs(marks).map(([mark, start, end]) => [mark, from + start, from + end]);
  ranges.between(from, to, (first, last, { spec: { mark } }) => {
    if (first < from && all[0][0] === mark) all[0][1] = first;
    else if (first < from) all.unshift([mark, first, from]);
    if (last > to && all[all.length - 1][0] === mark) all[all.length - 1][2] = last;
    else if (last > to) all.push([mark, to, last]);
  });
  return ranges.update({ filter: () => false, filterFrom: from, filterTo: to, add: rangesOf(all) });
}

export const authors = StateField.define({
  create: () => Decoration.none,
  update(before, transaction) {
    const set = transaction.effects.find((each) => each.is(setMarks));
    if (set) return Decoration.set(rangesOf(runs(set.value)));
    const known = transaction.annotation(by);
    let [now, done] = [before.map(transaction.changes), 0];
    transaction.changes.iterChanges((from, to, at, end) => {
      const around = () => ownMark(marksBetween(before, from - 1, from), marksBetween(before, from, to), marksBetween(before, to, to + 1));
      const marks = known && known.length > 1 ? known.slice(done, done + end - at) : (known ?? around()).repeat(end - at);
      if (end > at) now = put(now, at, marks);
      done += end - at;
    });
    return now;
  },
  provide: (field) => EditorView.decorations.from(field),
});

/**
 * Return the marks of a part of the text.
 * @param {EditorState} state
 */
export const marksOf = (state, from = 0, to = state.doc.length) => marksBetween(state.field(authors), from, to);

/** Return all marks, packed as in authorship.js. */
export function packedMarks(/** @type {EditorState} */ state) {
  const found = /** @type {[mark: string, count: number][]} */ ([]);
  state.field(authors).between(0, state.doc.length, (from, to, { spec: { mark } }) => {
    const last = found.at(-1);
    if (last && last[0] === mark) last[1] += to - from;
    else found.push([mark, to - from]);
  });
  return found.flat().join("");
}

export const shade = StateField.define({
  create: () => Decoration.none,
  update(before, transaction) {
    const set = transaction.effects.find((each) => each.is(setShade))?.value;
    if (set) return set.from < set.to ? Decoration.set(FRESH.range(set.from, set.to)) : Decoration.none;
    return transaction.docChanged && transaction.annotation(origin) !== DEVICE ? Decoration.none : before.map(transaction.changes);
  },
  provide: (field) => EditorView.decorations.from(field),
});
