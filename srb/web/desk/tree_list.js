// @ts-check
// The tree as text: the path to the current place, and the list of all places to return to.

import { create, find, focused, replaceItems } from "../lib/dom.js";
import { when } from "../lib/messages.js";
import { titleOf } from "../settings/guide.js";
import { nodeTitle, shorten } from "../story/titles.js";
import { ROOT } from "../story/tree.js";

/** @typedef {import("./desk.js").Desk} Desk */

const LAST = 4; // steps to show of a long path

/** Draw the path as a row of buttons, from the start. */
export function drawPath(/** @type {Desk} */ desk) {
  const { tree, drafts } = desk;
  const path = tree.path(tree.current);
  const step = (id, text) => {
    const onclick = () => {
      desk.go(id);
      desk.story.resume();
    };
    const isHere = id === tree.current;
    const draft = !isHere && drafts.has(id) ? [create("small", {}, "+ draft")] : [];
    const fields = { type: "button", onclick, ariaCurrent: isHere ? "true" : null, dataset: { place: id } };
    return create("li", {}, create("button", fields, text, ...draft));
  };
  const between = path.length > LAST ? [create("li", {}, "…")] : [];
  replaceItems(find("#path"), [step(ROOT, "Start"), ...between, ...path.slice(-LAST).map((node) => step(node.id, nodeTitle(node, 28)))]);
}

/**
 * Return the places in the order of the list. The path to the current place stays in the first column; other branches
 * come in the next column, before the path continues.
 * @param {import("../story/tree.js").Tree} tree
 * @returns {{ id: string, column: number, isBranch: boolean, goesOn: boolean }[]}
 */
export function rows(tree) {
  const onPath = new Set(tree.path(tree.current).map((node) => node.id));
  const all = [];
  const follow = (id, column, isBranch) => {
    for (let next = id, starts = isBranch; next; starts = false) {
      const below = tree.places(next);
      const main = below.find((node) => onPath.has(node.id)) ?? below.at(-1);
      all.push({ id: next, column, isBranch: starts, goesOn: Boolean(main) });
      for (const node of below) if (node !== main) follow(node.id, column + 1, true);
      next = main?.id;
    }
  };
  follow(ROOT, 0, false);
  return all;
}

/** Return what was typed after a text, or all of it if the text was edited. */
export const rest = (/** @type {string} */ typed, /** @type {string} */ text) =>
  typed.startsWith(text) ? typed.slice(text.length) : typed;

/** Describe what was generated at a place, in a line for each batch. */
function generations(tree, id) {
  const batches = Map.groupBy(tree.alternatives(id), (node) => node.batch);
  return [...batches].flatMap(([batch, nodes]) => {
    const all = nodes.flatMap(({ settings }) => settings ?? []);
    if (!all.length) return []; // nothing was generated: a word was chosen
    const values = (name) => [...new Set(all.map((each) => JSON.stringify(each[name])).filter(Boolean))].join(", ");
    const { until } = nodes[0];
    const names = new Set(all.flatMap(Object.keys));
    const facts = [nodes.length === 1 ? "1 alternative" : `${nodes.length} alternatives`];
    if (until) facts.push(`${until.count} ${until.count === 1 ? until.unit.slice(0, -1) : until.unit}`);
    else if (names.has("max_tokens")) facts.push(`${values("max_tokens")} tokens`);
    for (const name of ["max_tokens", "seed"]) names.delete(name);
    if (names.delete("direction")) facts.push(`Directions: ${nodes.map(({ label }) => label).join(", ")}`); // the settings have tokens
    for (const name of names) facts.push(values(name) === "true" ? titleOf(name) : `${titleOf(name)} ${values(name)}`);
    facts.push(when.format(nodes[0].created ?? batch));
    return shorten(facts.join(" · "), 160);
  });
}

/** Draw the tree, without alternatives that have no continuation. Arrow keys move, Enter goes to a place. */
export function drawTree(/** @type {Desk} */ desk) {
  const { tree, drafts } = desk;
  const list = find("#tree");
  const go = (id) => desk.go(id);
  const places = rows(tree).map(({ id, column, isBranch, goesOn }) => {
    const node = tree.nodes.get(id);
    const kind = !node ? "start" : node.typed ? "typed" : node.kept ? "kept" : "passed";
    const isHere = id === tree.current;
    const className = `${kind}${isBranch ? " branch" : ""}${goesOn ? " goes-on" : ""}`;
    const about = { dataset: { place: id, parent: node?.parent ?? "" }, style: { "--column": column }, onclick: () => go(id) };
    const states = { role: "treeitem", ariaLevel: tree.path(id).length + 1, ariaSelected: String(isHere), tabIndex: isHere ? 0 : -1 };
    const item = create("li", { className, ...about, ...states }, create("span", {}, node ? nodeTitle(node, 60) : "Start"));
    if (node?.name) item.append(create("small", { className: "named" }, `★ ${node.name}`));
    if (kind === "kept") item.append(create("small", {}, "kept"));
    if (drafts.has(id)) item.append(create("small", {}, `draft: ${shorten(rest(drafts.at(id), tree.text(id)), 60)}`));
    item.append(...generations(tree, id).map((line) => create("small", {}, line)));
    return item;
  });
  list.onkeydown = (event) => walk(event, list, go);
  replaceItems(list, places);
}

function walk(event, list, go) {
  const at = focused();
  const child = [...list.children].findLast((each) => each.dataset.parent === at.dataset.place); // the branch continues there
  const to = {
    ArrowDown: at.nextElementSibling,
    ArrowUp: at.previousElementSibling,
    ArrowLeft: list.querySelector(`[data-place="${at.dataset.parent}"]`),
    ArrowRight: child,
    Home: list.firstElementChild,
    End: list.lastElementChild,
  };
  if (event.key === "Enter" || event.key === " ") go(at.dataset.place);
  else if (event.key in to) to[event.key]?.focus();
  else return;
  event.preventDefault();
}
