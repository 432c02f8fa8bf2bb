// Styles: settings that go together, under a name. This browser keeps those of one's own, for all stories.

import { STYLES } from "./guide.js";

const KEY = "srb-styles";
const OWN = "Your own";
const MIXED = "Mixed";
const MIX = ["Careful", "As the server has it", "Lively", "Wild"];
const NAMES = { "As the server has it": "Usual" }; // what an alternative of the mix is called

function kept() {
  try {
    return JSON.parse(localStorage.getItem(KEY)) ?? {};
  } catch {
    return {}; // the browser keeps nothing
  }
}

export class Styles {
  // values: what is set, by name; set(values) sets what a style says, and leaves the rest of what styles say to the server.
  constructor({ values, set }) {
    const find = (selector) => document.querySelector(selector);
    Object.assign(this, { values, set, isMixed: false });
    [this.box, this.keep, this.forget] = ["#style", "#keep-style", "#forget-style"].map(find);
    this.box.addEventListener("input", () => this.#choose(this.box.value));
    this.keep.addEventListener("click", () => this.#keep());
    this.forget.addEventListener("click", () => this.#put(this.box.value, undefined));
    this.#fill();
  }

  get #all() {
    return { ...STYLES, ...kept() };
  }

  #fill() {
    this.box.replaceChildren(...[...Object.keys(this.#all), MIXED, OWN].map((name) => new Option(name)));
  }

  #choose(name) {
    this.isMixed = name === MIXED;
    if (name !== OWN) this.set(this.#all[name] ?? {});
  }

  // Shows which style it is that is set.
  draw() {
    const values = JSON.stringify(Object.entries(this.values()).sort());
    this.isMixed &&= values === "[]";
    const [name] = Object.entries(this.#all).find(([, style]) => JSON.stringify(Object.entries(style).sort()) === values) ?? [OWN];
    this.box.value = this.isMixed ? MIXED : name;
    this.box.lastElementChild.hidden = this.box.value !== OWN;
    this.keep.hidden = this.box.value !== OWN;
    this.forget.hidden = !(this.box.value in kept());
  }

  #keep() {
    const name = prompt("What is this style called?")?.trim();
    if (name && name in STYLES) return alert(`The page has a style ${name}. Choose another name.`);
    if (name) this.#put(name, this.values());
  }

  #put(name, style) {
    localStorage.setItem(KEY, JSON.stringify({ ...kept(), [name]: style }));
    this.#fill();
    this.draw();
  }

  // The columns of a mix, as Compare has them; null where nothing is mixed.
  get mix() {
    return this.isMixed ? MIX.map((name) => ({ label: NAMES[name] ?? name, fields: STYLES[name] })) : null;
  }
}
