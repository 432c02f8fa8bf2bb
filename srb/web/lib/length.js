// @ts-check
// Lengths in units that a writer counts in: words, sentences, paragraphs.

// The maximal length in tokens, per unit. An alternative without a boundary ends there.
const TOKENS = { words: 4, sentences: 60, paragraphs: 500 };
const ROOM = 100;

export const UNITS = ["tokens", ...Object.keys(TOKENS)];

export const maxTokens = ({ unit, count }) => TOKENS[unit] * count + ROOM;

export const sentences = new Intl.Segmenter(undefined, { granularity: "sentence" });

const CHARACTER = "\\p{scx=Han}\\p{scx=Hiragana}\\p{scx=Katakana}"; // of a script without spaces between words
const WORD = new RegExp(`[[\\p{L}\\p{N}]&&[${CHARACTER}]]|[\\p{L}\\p{N}][^\\s${CHARACTER}]*`, "gv");

/**
 * Find the words of a text. A Chinese or Japanese character counts as one.
 * @returns {number[]} where the first letter or digit of each is
 */
export const wordsOf = (text) => Array.from(text.matchAll(WORD), ({ index }) => index);

/** @param {string} text */
export const words = (text) => wordsOf(text).length;

/** Return the beginning of a text to vary: its first sentence, or the first half of its only one. */
export function opening(text) {
  const [first, second] = Array.from(sentences.segment(text)).filter(({ segment }) => words(segment));
  if (second) return text.slice(0, first.index + first.segment.length).trimEnd();
  const all = text.match(/\s*\S+/g) ?? [];
  return all.slice(0, Math.ceil(all.length / 2)).join("");
}

/**
 * Return where a growing text reaches a length, at the end of a sentence or paragraph; -1 if it doesn't yet. A
 * sentence ends when the next one has started: "He left." may continue with a quotation mark.
 * @param {string} text
 * @param {{ unit: string, count: number }} length
 */
export function endOf(text, { unit, count }) {
  const isParagraphs = unit === "paragraphs";
  const parts = isParagraphs ? text.split(/(?<=\n)(?!\n)/) : Array.from(sentences.segment(text), ({ segment }) => segment);
  let [length, place] = [0, 0];
  for (const part of parts.slice(0, -1)) {
    place += part.length;
    length += unit === "words" ? words(part) : Math.sign(words(part));
    if (length >= count) return text.slice(0, place).trimEnd().length;
  }
  return -1;
}
