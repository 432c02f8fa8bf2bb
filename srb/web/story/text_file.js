// @ts-check
// Stories in text files: names, previews, and lines of Markdown.

const LONGEST_NAME = 100; // characters

/** Name a file after a story. */
export function fileName(title, extension) {
  const line = title.replace(/[\p{Cc}\\/:*?"<>|]/gu, " ").replace(/\s+/g, " ");
  const name = Array.from(line).slice(0, LONGEST_NAME).join("") // an emoji may be two code units
    .replace(/^[ .]+|[ .]+$/g, "");
  return `${name || "story"}.${extension}`;
}

const TREES = ["json", "tapestry"]; // these have all that was ever written, and no limit
const LARGEST = 32; // MiB: the server's limit for documents, a hundred novels of text

/**
 * Return the ending of a file that can be imported, in lower case.
 * @param {{ name: string, size: number }} file
 * @param {string[]} endings that can be imported
 * @throws {Error} with what to do, if it can't be
 */
export function endingOf({ name, size }, endings) {
  const ending = /\.([^.]*)$/.exec(name)?.[1].toLowerCase() ?? "";
  if (!endings.includes(ending)) throw new Error(`${name} can't be imported; the page reads ${endings.join(", ")}. Save it as one of these, such as docx.`);
  const mebibytes = Math.ceil(size / 2 ** 20);
  if (!TREES.includes(ending) && mebibytes > LARGEST)
    throw new Error(`${name} has ${mebibytes} MiB, and a file to import at most ${LARGEST}. Save it without its pictures, or in parts.`);
  return ending;
}

const SHOWN = 12; // lines

/** Return the lines of a text that show whether its encoding is right: those with more than ASCII. */
export const telling = (text) => text.split("\n").filter((line) => /[^\0-\x7f]/.test(line)).slice(0, SHOWN).join("\n").slice(0, 100 * SHOWN);

const INNER = String.raw`(?![\s*_])((?:\\.|[^*_\\]|\*\*[^*]+\*\*|__[^_]+__|(?!\1)[*_])*?(?:\\.|[^\s\\]))`;
const EMPHASIS = new RegExp(String.raw`(?<![\p{L}\p{N}\\*_])(\*\*\*|___|\*\*|__|\*|_)${INNER}\1(?![\p{L}\p{N}*_])`, "u");
const unescape = (text) => text.replace(/\\([!-/:-@[-`{-~])/g, "$1");

/** @typedef {{ text: string, bold: boolean, italic: boolean }} Run text of one style, without signs */

/** Split a line of Markdown into runs of bold, italic and other text. @returns {Run[]} */
export function runsOf(line, bold = false, italic = false) {
  const found = EMPHASIS.exec(line);
  if (!found) return line ? [{ text: unescape(line), bold, italic }] : [];
  const [all, { length }, inner] = found;
  const rest = line.slice(found.index + all.length);
  const before = line.slice(0, found.index);
  const first = before ? [{ text: unescape(before), bold, italic }] : [];
  return [...first, ...runsOf(inner, bold || length > 1, italic || length !== 2), ...runsOf(rest, bold, italic)];
}
