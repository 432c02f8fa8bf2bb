// @ts-check
// Who wrote each character of a text: a string of marks, one per character, which is cut and joined like the text.

export const WRITER = "w";
export const MODEL = "m";
export const CHANGED = "c"; // by the writer, in the model's text
export const PASTED = "p";

const isModels = (mark) => mark === MODEL || mark === CHANGED;

/**
 * Apply a change to the marks.
 * @param {string} marks
 * @param {{ at: number, removed: string, added: string }} change by the writer
 * @param {string} [known] the marks of what was added, if they are known
 * @returns {string}
 */
export const applyEdit = (marks, { at, removed, added }, known) => applyEdits(marks, [{ at, removed, added, marks: known }]);

/**
 * Apply several changes at once to the marks.
 * @param {string} marks
 * @param {{ at: number, removed: string, added: string, marks?: string }[]} changes ascending, with the marks of what was
 *   added, if they are known
 * @returns {string}
 */
export function applyEdits(marks, changes) {
  const parts = [];
  let done = 0;
  for (const { at, removed, added, marks: known } of changes) {
    const end = at + removed.length;
    const isWithin = [...marks.slice(at, end)].some(isModels) || (isModels(marks[at - 1]) && isModels(marks[end]));
    parts.push(marks.slice(done, at), known ?? (isWithin ? CHANGED : WRITER).repeat(added.length));
    done = end;
  }
  return parts.join("") + marks.slice(done);
}

/**
 * Return the marks of an added text: one mark is of all its characters.
 * @param {string | undefined} by
 * @param {number} length
 */
export const spread = (by, length) => (by?.length === 1 ? by.repeat(length) : by);

/**
 * Pack marks, as in "w12m80".
 * @param {string} marks
 * @returns {string}
 */
export const packMarks = (marks) => marks.replace(/(.)\1*/g, (run, mark) => mark + run.length);

/**
 * Unpack the marks of a text. Unknown ones are the writer's.
 * @param {string | undefined} short
 * @param {number} length
 * @returns {string}
 */
export const unpackMarks = (short = "", length) =>
  Array.from(short.matchAll(/([wmcp])(\d+)/g), ([, mark, count]) => mark.repeat(Math.min(Number(count), length)))
    .join("").slice(0, length).padEnd(length, WRITER);

/**
 * Split marks into runs.
 * @param {string} marks
 * @returns {[mark: string, from: number, to: number][]}
 */
export const runs = (marks) => Array.from(marks.matchAll(/(.)\1*/g), ({ 0: run, 1: mark, index }) => [mark, index, index + run.length]);
