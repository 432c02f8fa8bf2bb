// @ts-check
// What the model sees: all parts of the prompt with their origins and token counts.

import { create, find } from "../lib/dom.js";
import { words } from "../lib/length.js";
import { numbers } from "../lib/messages.js";

const NAMES = { memory: "Memory", lore: "Lore", note: "Author's note", story: "Your text" };

export class PromptView {
  /** @param {import("./desk.js").Desk} desk */
  constructor(desk) {
    this.desk = desk;
  }

  async draw(/** @type {string} */ text) {
    if (!find("#model-view").open) return;
    const asked = (this.asked = {});
    const { context, settings } = this.desk;
    let seen;
    let fault;
    try {
      seen = await context.compose(text, settings.read());
    } catch (error) {
      fault = error.message;
    }
    if (asked !== this.asked) return;
    const { parts, from, omitted } = seen ?? { parts: [], from: 0, omitted: [] };
    const sums = Map.groupBy(parts, (part) => part.origin);
    const rows = [...sums].map(([origin, all]) => {
      const tokens = all.reduce((sum, part) => sum + part.tokens, 0);
      return create("li", {}, create("span", { className: `origin-${origin}`, textContent: NAMES[origin] }), ` ${numbers.format(tokens)} tokens`);
    });
    find("#costs").replaceChildren(...rows);
    const left = from ? [`The first ${numbers.format(words(text.slice(0, from)))} words of your text don't fit and are left out.`] : [];
    if (omitted.length) left.push(`These lore entries don't fit: ${omitted.map((entry) => entry.name || entry.keys).join(", ")}.`);
    find("#left-out").textContent = fault ?? left.join(" ");
    find("#prompt").replaceChildren(...parts.map(partElement));
  }
}

function partElement({ origin, name, text, tokens }) {
  const title = name ? `${NAMES[origin]}: ${name}` : NAMES[origin];
  const head = create("h4", { textContent: `${title} · ${numbers.format(tokens)} tokens` });
  return create("section", {}, head, create("p", { className: `origin-${origin}`, textContent: text.trim() }));
}
