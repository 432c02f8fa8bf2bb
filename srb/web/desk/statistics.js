// @ts-check
// Statistics of a story: what was kept most, by setting.

import { create, find } from "../lib/dom.js";
import { percent } from "../lib/messages.js";
import { STYLES, TITLES, titleOf } from "../settings/guide.js";

/** @typedef {import("../story/tree.js").StoryNode} StoryNode */

const LEFT_OUT = new Set(["n", "seed", "max_tokens", "ahead", "avoid"]); // these say nothing about the words

/** Return the style of a node, or its settings by title. */
function factsOf(/** @type {StoryNode} */ { label, settings = {} }) {
  if (label && Object.hasOwn(STYLES, label)) return { Style: label };
  const set = Object.entries(settings).filter(([name]) => name in TITLES && !LEFT_OUT.has(name));
  return Object.fromEntries(set.map(([name, value]) => [titleOf(name), typeof value === "string" ? value : JSON.stringify(value)]));
}

/**
 * Count how often alternatives were kept, by setting. Only batches count of which one was kept, and only settings that
 * had several values.
 * @param {StoryNode[]} nodes
 * @returns {{ setting: string, value: string, kept: number, shown: number }[]} the most often kept value of each
 *   setting first; "" is the server's default
 */
export function keptBySetting(nodes) {
  const isGenerated = (/** @type {StoryNode} */ node) => !node.typed && !node.stem && node.settings;
  const batches = [...Map.groupBy(nodes.filter(isGenerated), (node) => node.batch).values()];
  const counted = batches.filter((batch) => batch.length > 1 && batch.some((node) => node.kept)).flat();
  const facts = counted.map((node) => ({ node, facts: factsOf(node) }));
  const settings = new Set(facts.flatMap((each) => Object.keys(each.facts)));
  return [...settings].flatMap((setting) => {
    const isOfKind = (each) => setting in each.facts || (setting !== "Style" && !each.facts.Style);
    const groups = [...Map.groupBy(facts.filter(isOfKind), (each) => each.facts[setting] ?? "")];
    if (groups.length < 2) return [];
    return groups
      .map(([value, all]) => ({ setting, value, kept: all.filter(({ node }) => node.kept).length, shown: all.length }))
      .sort((a, b) => b.kept / b.shown - a.kept / a.shown);
  });
}

export function drawStatistics(/** @type {import("../story/tree.js").Tree} */ tree) {
  const rows = keptBySetting([...tree.nodes.values()]);
  const cells = ({ setting, value, kept, shown }, k) => [
    rows[k - 1]?.setting === setting ? create("td", {}) : create("th", { scope: "row" }, setting),
    create("td", {}, value || "default"),
    create("td", {}, `${kept} of ${shown}`),
    create("td", {}, percent.format(kept / shown)),
  ];
  const head = create("tr", {}, ...["Setting", "Value", "Kept", "Share"].map((textContent) => create("th", { scope: "col", textContent })));
  const table = create("table", {}, create("thead", {}, head), create("tbody", {}, ...rows.map((row, k) => create("tr", {}, ...cells(row, k)))));
  const nothing = "Nothing to compare yet. Keep an alternative of several that differ in a setting, as with the style Mixed.";
  find("#kept-by-setting").replaceChildren(rows.length ? table : create("p", { className: "hint" }, nothing));
}
