// @ts-check
// How long an alternative is to be, in units that a writer counts in. Pure.

// The tokens that such a length has at most; an alternative that comes to no boundary until then ends there.
const TOKENS = { words: 4, sentences: 60, paragraphs: 500 };
const ROOM = 100;

export const UNITS = ["tokens", ...Object.keys(TOKENS)];

export const maxTokens = ({ unit, count }) => TOKENS[unit] * count + ROOM;

const sentences = new Intl.Segmenter(undefined, { granularity: "sentence" });
// How many words a text has.
export const words = (text) => text.split(/\s+/).filter((word) => /[\p{L}\p{N}]/u.test(word)).length;

// How a text begins that is to be varied: its first sentence, or the first half of the words of its only one.
export function opening(text) {
  const [first, second] = Array.from(sentences.segment(text)).filter(({ segment }) => words(segment));
  if (second) return text.slice(0, first.index + first.segment.length).trimEnd();
  const all = text.match(/\s*\S+/g) ?? [];
  return all.slice(0, Math.ceil(all.length / 2)).join("");
}

// Where a text that is being written has got so long: the end of a sentence, or of a paragraph; -1 if it hasn't yet. That
// something has ended is known when the next has begun: "He left." may go on with a quotation mark.
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
