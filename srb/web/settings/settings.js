// @ts-check
// The settings, built from the server's own description of its fields, with their ranges and defaults. A new sampler
// needs no line here.

import { create, find, findAll } from "../lib/dom.js";
import { maxTokens, UNITS } from "../lib/length.js";
import { GROUPS, GUIDE, STYLED, titleOf } from "./guide.js";
import { Styles } from "./styles.js";

const GUIDED = 1.5; // the initial scale with a negative prompt
const SLIDERS = { diversity: 4, guidance_scale: 4 }; // useful maximum
const TEXTS = ["negative_prompt"]; // which can also be lists
const USUAL = { words: 60, sentences: 3, paragraphs: 1 }; // used when the length is empty
const UNIT = "sentences"; // the default unit
const LEFT_OUT = ["label", "response_format", "direction"];
const ANY_CASE = "(?i)"; // before a banned phrase
const MARKED = /^(\(\?i\)|\/)/; // or a regular expression
const MOST_AVOIDED = 1000; // the server's limit
export const LIKELIEST = 8; // tokens to show at a place

export class Settings {
  panel = find("#options"); // which has a place for each group
  fields = new Map();

  /** @param {Record<string, any>} schemas `components.schemas` of the server's /openapi.json */
  constructor(schemas) {
    const { panel } = this;
    const { properties } = schemas.CompletionFields;
    const others = Object.keys(schemas.BranchFields.properties).filter((name) => !(name in GUIDE) && !LEFT_OUT.includes(name));
    const place = (group, names) => find(`[data-group=${group}]`, panel).append(...names.map((name) => this.#make(name, properties[name])));
    for (const part of findAll("details", panel)) part.prepend(create("summary", {}, `${part.dataset.title} `, create("small", { className: "count" })));
    for (const [group, settings] of Object.entries(GROUPS)) place(group, Object.keys(settings).filter((name) => name in properties));
    place("engineers", others);
    this.#guide(this.fields.get("negative_prompt").input, this.fields.get("guidance_scale").input);
    this.options = { shades: find("#shades"), unseen: find("#unseen"), tints: find("#tints"), blind: find("#blind"), anyCase: find("#any-case") };
    this.n = Math.min(8, properties.n.maximum);
    this.fields.get("n").input.placeholder = this.n;
    this.fields.get("seed").input.placeholder = "any";
    this.unit = find("#length-unit");
    this.unit.append(...UNITS.map((unit) => new Option(unit)));
    this.unit.value = UNIT;
    this.length = this.fields.get("max_tokens").input;
    this.length.after(this.unit);
    this.fields.get("banned_strings").input.before(this.options.anyCase.parentElement);
    this.length.parentElement.classList.add("length");
    this.usual = { ...USUAL, [UNITS[0]]: this.length.placeholder };
    this.styles = new Styles(this);
    panel.addEventListener("input", () => this.show());
    this.show();
  }

  /** The settings of a style that this server has. */
  get #styled() {
    return STYLED.filter((name) => this.fields.has(name));
  }

  /** The values of those that are set, as texts. */
  get style() {
    const set = this.#styled.map((name) => [name, written(this.fields.get(name))]);
    return Object.fromEntries(set.filter(([, text]) => text.trim()));
  }

  set style(style) {
    for (const name of this.#styled) write(this.fields.get(name), style[name] ?? "");
  }

  /** Update what depends on the settings, and each group's count of changed settings. */
  show() {
    this.styles.draw();
    find("#manuscript").classList.toggle("tinted", this.options.tints.checked);
    document.body.classList.toggle("shaded", this.options.shades.checked);
    this.length.placeholder = this.usual[this.unit.value];
    const changed = this.#changed;
    for (const count of this.panel.querySelectorAll(".count")) {
      const { length } = changed.filter((control) => count.closest("details")?.contains(control));
      count.textContent = length ? `${length} changed` : "";
    }
  }

  get #changed() {
    const labels = findAll(".setting > label", this.panel);
    const { box, isMixed } = this.styles; // other styles count by their settings
    return labels.map((label) => label.control).filter((control) => (control === box ? isMixed : isChanged(control)));
  }

  /** Reset all settings to the server's values, and the page's options to their defaults. The story's memory stays. */
  reset() {
    for (const control of this.#changed) {
      if (control.closest(".of-story")) continue;
      restore(control);
      for (const type of ["input", "change"]) control.dispatchEvent(new Event(type, { bubbles: true }));
    }
    this.unit.value = UNIT;
    this.unit.dispatchEvent(new Event("input", { bubbles: true }));
  }

  /** The length of an alternative, if it isn't in tokens. */
  get until() {
    const count = Number(this.length.value) || USUAL[this.unit.value];
    return this.unit.value === UNITS[0] ? undefined : { unit: this.unit.value, count };
  }

  #make(name, schema) {
    const kind = name in SLIDERS ? "slider" : TEXTS.includes(name) ? "text" : kindOf(schema);
    const input = create(["lines", "json", "text"].includes(kind) ? "textarea" : "input", { id: `setting-${name}` });
    if (input.rows) input.rows = 2;
    if (kind === "boolean") input.type = "checkbox";
    const [min, max, placeholder] = [schema.minimum ?? "", schema.maximum ?? "", schema.default ?? ""];
    if (kind === "number") Object.assign(input, { type: "number", step: isInteger(schema) ? 1 : "any", min, max, placeholder });
    const number = create("output", {});
    if (kind === "slider") {
      Object.assign(input, { type: "range", min, max: SLIDERS[name], step: 0.1, defaultValue: placeholder });
      number.htmlFor = input.id;
      number.value = input.value;
      input.addEventListener("input", () => (number.value = input.value));
    }
    this.fields.set(name, { kind, input });

    const described = schema.description?.replace(/ ?Also: .*$/, "") ?? "";
    const [title, meaning] = GUIDE[name] ?? [name, described];
    const label = create("label", { htmlFor: input.id }, title);
    const hint = create("p", { id: `${input.id}-hint`, className: "hint" }, meaning + (kind === "lines" ? " One per line; \\n is a line break." : ""));
    input.setAttribute("aria-describedby", hint.id);
    const api = create("p", { className: "hint api" }, create("code", {}, name), `: ${described}`);
    return create("div", { className: `setting ${kind}` }, label, ...(kind === "slider" ? [number] : []), input, hint, api);
  }

  /** A negative prompt has no effect without a scale, and a scale without a negative prompt is a mistake. */
  #guide(negative, scale) {
    negative.addEventListener("input", () => {
      if (!negative.value) put(scale, scale.defaultValue);
      else if (scale.value === scale.defaultValue) put(scale, GUIDED);
    });
  }

  get comparable() {
    return [...this.fields.keys()].filter((name) => !["n", "seed", "distinct", "ahead"].includes(name));
  }

  /** Return the settings that aren't left to the server, as a request has them. */
  read() {
    const body = /** @type {Record<string, any>} */ ({ n: this.n, logprobs: LIKELIEST });
    for (const [name, { kind, input }] of this.fields) {
      if (input.validity.badInput) throw new Error(`${titleOf(name)} must be a number`);
      if (isChanged(input)) body[name] = this.parse(name, written({ kind, input }));
    }
    if (this.until) body.max_tokens = maxTokens(this.until);
    return body;
  }

  /** Add texts, from old to new, whose openings new alternatives must avoid. */
  avoiding(/** @type {Record<string, any>} */ fields, /** @type {string[]} */ texts) {
    return this.options.unseen.checked ? { ...fields, avoid: [...(fields.avoid ?? []), ...texts].slice(-MOST_AVOIDED) } : fields;
  }

  parse(/** @type {string} */ name, /** @type {string} */ text) {
    const { kind } = this.fields.get(name);
    if (kind === "boolean") return text.trim() === "true";
    const isAnyCase = name === "banned_strings" && this.options.anyCase.checked;
    const lineOf = (line) => (isAnyCase && !MARKED.test(line) ? ANY_CASE + line : line).replaceAll("\\n", "\n");
    if (kind === "lines") return text.split("\n").filter(Boolean).map(lineOf);
    if (kind === "text") return text;
    try {
      return JSON.parse(text);
    } catch {
      throw new Error(`${titleOf(name)} must be ${kind === "json" ? "JSON" : "a number"}, not ${text.trim()}`);
    }
  }

  get values() {
    const inputs = [...this.fields].map(([name, { input }]) => [name, input.type === "checkbox" ? input.checked : input.value]);
    const options = Object.entries(this.options).map(([name, box]) => [name, box.checked]);
    return { ...Object.fromEntries([...inputs, ...options]), unit: this.unit.value, mixed: this.styles.isMixed };
  }

  set values(values) {
    for (const [name, box] of Object.entries(this.options)) if (name in values) box.checked = values[name];
    this.styles.isMixed = values.mixed === true;
    if (UNITS.includes(values.unit)) this.unit.value = values.unit;
    for (const [name, field] of this.fields) if (name in values) write(field, String(values[name] ?? ""));
    this.show();
  }
}

/** Return the text of a setting for `parse`; "" if it is left to the server. */
const written = ({ kind, input }) => (kind === "boolean" ? (input.checked ? "true" : "") : input.value);

function isChanged(control) {
  if (control.options) return control.selectedIndex > 0;
  if (control.validity.badInput) return true; // invalid input isn't in the value
  return control.type === "checkbox" ? control.checked !== control.defaultChecked : control.value.trim() !== control.defaultValue;
}

function restore(control) {
  if (control.options) control.selectedIndex = 0;
  else if (control.type === "checkbox") control.checked = control.defaultChecked;
  else control.value = control.defaultValue;
}

function write({ kind, input }, text) {
  if (kind === "boolean") input.checked = text === "true";
  else put(input, text || input.defaultValue); // an empty slider would be in its middle
}

/** Move a slider. Its number follows. */
function put(slider, value) {
  slider.value = value;
  slider.dispatchEvent(new Event("input"));
}

const types = (schema) => (schema.anyOf ?? []).flatMap((each) => each.type ?? []);
const isInteger = (schema) => types(schema).includes("integer");

function kindOf(schema) {
  const kinds = types(schema);
  if (kinds.includes("number") || kinds.includes("integer")) return "number";
  if (kinds.includes("boolean")) return "boolean";
  if (kinds.includes("array") && kinds.includes("string")) return "lines";
  return kinds.includes("string") ? "text" : "json";
}
