// @ts-check
// Styles: named groups of settings. This browser stores the writer's own styles, for all stories.

import { find, isFocusLost } from "../lib/dom.js";
import { loadLocal, saveLocal } from "../lib/local_storage.js";
import { showError } from "../lib/messages.js";
import { STYLED, STYLES } from "./guide.js";

const KEY = "srb-styles";
const OWN = "Your own";
const MIXED = "Mixed";
const MIX = ["Careful", "Default", "Lively", "Wild"];

const isThePages = (name) => Object.hasOwn(STYLES, name) || [MIXED, OWN].includes(name);
/** An older page may have stored settings that don't exist any more. */
const known = (style) => Object.fromEntries(Object.entries(style).filter(([name]) => STYLED.includes(name)));
const same = (style) => JSON.stringify(Object.entries(style).map(([name, value]) => [name, String(value)]).sort());

export class Styles {
  isMixed = false;
  box = find("#style");
  keep = find("#save-style");
  forget = find("#delete-style");

  /** @param {import("./settings.js").Settings} settings */
  constructor(settings) {
    this.settings = settings;
    this.box.addEventListener("input", () => this.#choose(this.box.value));
    this.keep.addEventListener("click", () => this.#keep());
    this.forget.addEventListener("click", () => this.#put(this.box.value, undefined));
    this.#fill();
  }

  get #all() {
    const own = Object.entries(loadLocal(KEY)).map(([name, style]) => [name, known(style)]); // values may be texts
    return { ...STYLES, ...Object.fromEntries(own) };
  }

  #fill() {
    this.box.replaceChildren(...[...Object.keys(this.#all), MIXED, OWN].map((name) => new Option(name)));
  }

  #choose(name) {
    this.isMixed = name === MIXED;
    if (name !== OWN) this.settings.style = this.#all[name] ?? {};
  }

  draw() {
    const { style } = this.settings;
    this.isMixed &&= !Object.keys(style).length;
    const [name] = Object.entries(this.#all).find(([, each]) => same(each) === same(style)) ?? [OWN];
    this.box.value = this.isMixed ? MIXED : name;
    this.box.lastElementChild.hidden = this.box.value !== OWN;
    this.keep.hidden = this.box.value !== OWN;
    this.forget.hidden = isThePages(this.box.value);
  }

  #keep() {
    let name = prompt("Name of the style:")?.trim();
    while (name && isThePages(name)) name = prompt(`${name} is one of the page's styles. Choose another name:`)?.trim();
    if (name) this.#put(name, this.settings.style);
  }

  #put(name, style) {
    const error = saveLocal(KEY, { ...loadLocal(KEY), [name]: style });
    if (error) showError(new Error(`This browser doesn't store styles: ${error.message}`));
    this.#fill();
    this.draw();
    if (isFocusLost()) this.box.focus(); // the pressed button is hidden now
  }

  /** The columns of a mix, as `Compare` has them; null without a mix. */
  get mix() {
    return this.isMixed ? MIX.map((name) => ({ label: name, fields: STYLES[name] })) : null;
  }
}
