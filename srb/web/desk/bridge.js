// @ts-check
// Bridging: alternatives that lead to what stands behind the cursor. The server finds those that it follows best. The first two are pure.

import { gap } from "../story/tree.js";

const FURTHER = 1000; // letters of what stands behind; the server judges by fewer

// What the alternatives are to lead to: what stands behind a place, with the space that parts it from them.
export const suffixOf = ({ before, behind }) => (gap(before, "…", behind) + behind).slice(0, FURTHER);

// How well what stands behind follows an alternative, in words. logprob: of that; best: the highest one of its siblings. In nats.
export function describeFit(logprob, best) {
  if (logprob >= best) return "fits the rest best";
  const times = Math.exp(best - logprob);
  return times < 3 ? "fits the rest nearly as well" : times < 50 ? "fits the rest less well" : "hardly fits the rest";
}

// Lets a button be pressed where there is something on both sides of the cursor.
export function watchCursor(button, desk) {
  const draw = () => {
    const { before, behind } = desk.take();
    button.disabled = !before.trim() || !behind.trim();
  };
  for (const name of ["selectionchange", "input", "change"]) document.addEventListener(name, draw);
  draw();
}
