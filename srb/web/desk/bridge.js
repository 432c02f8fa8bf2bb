// @ts-check
// Bridges: alternatives that lead to the text after the cursor. The server ranks them by the probability of that
// text.

import { gap } from "../story/tree.js";

const FURTHER = 1000; // characters; the server scores fewer

/**
 * Return the text after the cursor that a bridge leads to, with the space before it.
 * @param {{ before: string, behind: string }} text
 */
export const suffixOf = ({ before, behind }) => (gap(before, "…", behind) + behind).slice(0, FURTHER);

/**
 * Describe how well the text after the cursor fits an alternative.
 * @param {number} logprob log-probability of that text, given the alternative
 * @param {number} best the highest of all alternatives
 */
export function describeFit(logprob, best) {
  if (logprob >= best) return "fits the rest best";
  const times = Math.exp(best - logprob);
  return times < 3 ? "fits the rest nearly as well" : times < 50 ? "fits the rest less well" : "hardly fits the rest";
}
