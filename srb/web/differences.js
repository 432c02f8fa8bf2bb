// What differs between two versions of a passage, in words. Pure.

const MOST = 4_000_000; // comparisons of words; beyond that all of a version counts as other

const words = (text) => Array.from(text.matchAll(/[\p{L}\p{N}\p{M}'’]+|[^\s\p{L}\p{N}]/gu), ({ 0: word, index }) => ({ word, from: index, to: index + word.length }));

// The places [from, to] of `after` whose words aren't the longest sequence of words that both have (Hunt and Szymanski's problem, by
// the usual table). Words that stand side by side are one place.
export function differing(before, after) {
  const [a, b] = [words(before), words(after)];
  if (a.length * b.length > MOST) return after ? [[0, after.length]] : [];
  const lengths = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--)
    for (let k = b.length - 1; k >= 0; k--)
      lengths[i][k] = a[i].word === b[k].word ? lengths[i + 1][k + 1] + 1 : Math.max(lengths[i + 1][k], lengths[i][k + 1]);
  const others = [];
  for (let i = 0, k = 0; k < b.length; ) {
    if (i < a.length && a[i].word === b[k].word) [i, k] = [i + 1, k + 1];
    else if (i < a.length && lengths[i + 1][k] >= lengths[i][k + 1]) i++;
    else {
      const last = others.at(-1);
      if (last && !after.slice(last[1], b[k].from).trim()) last[1] = b[k].to;
      else others.push([b[k].from, b[k].to]);
      k++;
    }
  }
  return others;
}
