// @ts-check
// Phrases that the model repeats: runs of three to six words in many alternatives, and not as often in the writer's own
// text.

const [SHORTEST, LONGEST] = [3, 6]; // words
const LEAST = 3; // alternatives more than times in the writer's text
const MOST = 30; // phrases

const WORD = /[\p{L}\p{M}\p{N}]+(?:['’-][\p{L}\p{M}\p{N}]+)*/gu;

/** Return the runs of words of a text. Punctuation and line breaks end a run. */
function wordRuns(text) {
  const runs = [];
  let end = -1;
  for (const { 0: word, index } of text.matchAll(WORD)) {
    if (end >= 0 && /^[^\S\n]+$/.test(text.slice(end, index))) runs.at(-1).push(word);
    else runs.push([word]);
    end = index + word.length;
  }
  return runs;
}

function* phrases(words, lengths) {
  for (const length of lengths)
    for (let k = 0; k + length <= words.length; k++) yield words.slice(k, k + length).join(" ");
}

const LENGTHS = Array.from({ length: LONGEST - SHORTEST + 1 }, (_, k) => SHORTEST + k);

/**
 * Find what the model repeats. A phrase counts once for each alternative that has it, less the times that the writer
 * wrote it. Phrases are sorted by that count times their words; one that shares three words in a row with a phrase
 * before it is left out.
 * @param {string[]} alternatives
 * @param {string[]} own the writer's text, in parts
 * @returns {{ phrase: string, count: number, own: number }[]} `count` is in how many alternatives it is
 */
export function repeatedPhrases(alternatives, own) {
  const found = new Map(); // by lower case: {phrase, count, own}
  for (const text of alternatives) {
    const here = new Set();
    for (const phrase of wordRuns(text).flatMap((words) => [...phrases(words, LENGTHS)])) {
      const key = phrase.toLowerCase();
      if (here.has(key)) continue;
      here.add(key);
      const known = found.get(key);
      if (known) known.count++;
      else found.set(key, { phrase, count: 1, own: 0 });
    }
  }
  for (const [key, { count }] of found) if (count < LEAST) found.delete(key);
  for (const words of own.flatMap(wordRuns))
    for (const phrase of phrases(words, LENGTHS)) {
      const known = found.get(phrase.toLowerCase());
      if (known) known.own++;
    }
  const score = ({ phrase, count, own: mine }) => (count - mine) * phrase.split(" ").length;
  const repeated = [...found.values()].filter(({ count, own: mine }) => count - mine >= LEAST).sort((a, b) => score(b) - score(a));
  const taken = new Set();
  const isNew = ({ phrase }) => {
    const parts = [...phrases(phrase.toLowerCase().split(" "), [SHORTEST])];
    const isFree = !parts.some((part) => taken.has(part));
    if (isFree) for (const part of parts) taken.add(part);
    return isFree;
  };
  return repeated.filter(isNew).slice(0, MOST);
}

const PREFIX = "(?i)"; // older pages banned a phrase so

/** The phrases of a setting of banned phrases, one per line. */
export const bannedIn = (setting) => setting.split("\n").filter(Boolean).map((line) => (line.startsWith(PREFIX) ? line.slice(PREFIX.length) : line));

const isSame = (a, b) => a.toLowerCase() === b.toLowerCase();

export const isBanned = (setting, phrase) => bannedIn(setting).some((each) => isSame(each, phrase));

/** Ban a phrase, or lift its ban. Returns the changed setting. */
export function toggleBan(setting, phrase) {
  const lines = setting.split("\n").filter(Boolean);
  const others = lines.filter((line) => !isSame(bannedIn(line)[0], phrase));
  return [...others, ...(others.length < lines.length ? [] : [phrase])].join("\n");
}
