// @ts-check
// Who wrote each letter of a text: a letter for each, so that marks are cut and joined as the text is. Pure.

export const WRITER = "w";
export const MODEL = "m";
export const CHANGED = "c"; // the writer, in what the model wrote

const isModels = (mark) => mark === MODEL || mark === CHANGED;

// The marks of a text after a change of it, which the writer has made. known: those of what was added, where they are known.
export function applyEdit(marks, { at, removed, added }, known) {
  const end = at + removed.length;
  const isWithin = [...marks.slice(at, end)].some(isModels) || (isModels(marks[at - 1]) && isModels(marks[end]));
  return marks.slice(0, at) + (known ?? (isWithin ? CHANGED : WRITER).repeat(added.length)) + marks.slice(end);
}

// In short: "w12m80".
export const packMarks = (marks) => marks.replace(/(.)\1*/g, (run, mark) => mark + run.length);

// Those of a text that is so long. What isn't known is the writer's.
export const unpackMarks = (short = "", length) =>
  Array.from(short.matchAll(/([wmc])(\d+)/g), ([, mark, count]) => mark.repeat(Math.min(Number(count), length)))
    .join("").slice(0, length).padEnd(length, WRITER);

// Where each of them has written: [mark, from, to].
export const runs = (marks) => Array.from(marks.matchAll(/(.)\1*/g), ({ 0: run, 1: mark, index }) => [mark, index, index + run.length]);
