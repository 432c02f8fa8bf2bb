// @ts-check
// Who wrote each character of a text: a string of marks, one per character, which is cut and joined like the text.

export const WRITER = "w";
export const MODEL = "m";
export const CHANGED = "c"; // by the writer, in the model's text
export const PASTED = "p";

const isModels = (mark) => mark === MODEL || mark === CHANGED;

/** Return the mark of what the writer types, by the marks of what it replaces, and of the characters around that. */
export const ownMark = (before, removed, after) => ([...removed].some(isModels) || (isModels(before) && isModels(after)) ? CHANGED : WRITER);

/** Pack marks, as in "w12m80". */
export const packMarks = (marks) => marks.replace(/(.)\1*/g, (run, mark) => mark + run.length);

/** Unpack the marks of a text. Unknown ones are the writer's. */
export const unpackMarks = (short = "", length) =>
  Array.from(short.matchAll(/([wmcp])(\d+)/g), ([, mark, count]) => mark.repeat(Math.min(Number(count), length)))
    .join("").slice(0, length).padEnd(length, WRITER);

/** @returns {[mark: string, from: number, to: number][]} */
export const runs = (marks) => Array.from(marks.matchAll(/(.)\1*/g), ({ 0: run, 1: mark, index }) => [mark, index, index + run.length]);
