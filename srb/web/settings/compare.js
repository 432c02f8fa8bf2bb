// @ts-check
// Comparing: columns that differ in one setting or in their prompts, with the same seeds.

import { create, find } from "../lib/dom.js";
import { followText } from "./follow_text.js";
import { titleOf } from "./guide.js";

export const drawSeed = () => crypto.getRandomValues(new Uint32Array(1))[0];

export class Compare {
  constructor(/** @type {import("./settings.js").Settings} */ settings, /** @type {{ value: string }} */ story) {
    this.settings = settings;
    this.story = story;
    this.what = find("#compare-what");
    this.name = find("#compare-name");
    this.list = find("#compare-values");
    this.prompts = find("#compare-prompts");
    for (const name of settings.comparable) this.name.append(new Option(titleOf(name), name));
    this.name.value = "temperature";
    this.what.addEventListener("change", () => this.#show());
    find("#add-prompt").addEventListener("click", () => this.#addPrompt().focus());
  }

  /**
   * @returns {{ label: string | null, prompt?: string, fields: Record<string, any> }[]} without a prompt, it is the
   *   story's text
   * @throws {Error} if a value is wrong
   */
  columns() {
    if (this.what.value === "setting") {
      const name = this.name.value;
      const values = this.list.value.split(",").map((text) => text.trim()).filter(Boolean);
      if (values.length < 2) throw new Error(`To compare, enter two or more values of ${titleOf(name)}, separated by commas.`);
      return values.map((text) => ({ label: `${titleOf(name)} ${text}`, fields: { [name]: this.settings.parse(name, text) } }));
    }
    if (this.what.value === "prompts") {
      return [this.story.value, ...this.texts].map((prompt, k) => ({ label: `Text ${k + 1}`, prompt, fields: {} }));
    }
    return [{ label: null, fields: {} }];
  }

  get texts() {
    return [...this.prompts.querySelectorAll("textarea")].map((each) => each.value);
  }

  set texts(texts) {
    const boxes = this.prompts.querySelectorAll("textarea");
    texts.forEach((text, k) => {
      if (!boxes[k]) this.#addPrompt(text);
      else followText(boxes[k], text);
    });
  }

  get values() {
    return { what: this.what.value, name: this.name.value, list: this.list.value };
  }

  set values({ what, name, list }) {
    this.what.value = what ?? "";
    this.name.value = name ?? "temperature";
    this.list.value = list ?? this.list.value;
    this.#show();
  }

  #show() {
    find("#compare-setting").hidden = this.what.value !== "setting";
    find("#compare-texts").hidden = this.what.value !== "prompts";
    if (this.what.value === "prompts" && !this.prompts.children.length) this.#addPrompt();
  }

  #addPrompt(text = this.story.value) {
    const box = create("textarea", { rows: 4, value: text });
    this.prompts.append(create("label", {}, `Text ${this.prompts.children.length + 2}`, box));
    return box;
  }
}

/**
 * Return the fields of a request for compared columns: a branch per alternative, row by row, so that a row has the
 * same seed. In a mix there are n in all, each with its own seed.
 */
export function branches(/** @type {any[]} */ columns, /** @type {Record<string, any>} */ { n, seed, ...fields }, isMix = false) {
  if (columns[0].label === null) return { n, seed, ...fields };
  const branch = (k) => {
    const column = columns[k % columns.length];
    return { ...column.fields, label: column.label, seed: (seed + (isMix ? k : Math.floor(k / columns.length))) % 2 ** 32 };
  };
  return { ...fields, branches: Array.from({ length: isMix ? n : n * columns.length }, (_, k) => branch(k)) };
}

/** Drop `ahead` from a body if its alternatives depend on each other or differ: none of them can come next. */
export function withAhead(/** @type {Record<string, any>} */ { ahead, ...body }) {
  const isAlone = !["diversity", "distinct", "avoid", "branches", "suffix", "search"].some((name) => body[name]);
  return ahead && isAlone ? { ...body, ahead } : body;
}
