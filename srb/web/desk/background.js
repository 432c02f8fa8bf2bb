// @ts-check
// The background of a story: memory, author's note and lorebook. It is edited in the panel that shows what the model
// sees.

import { find, isFocusLost } from "../lib/dom.js";
import { readJson } from "../lib/files.js";
import { DEPTH, EMPTY_ENTRY, importLorebook, readBackground } from "../story/lorebook.js";

const TEXTS = ["name", "keys", "also", "never", "text"];
const CHOICES = ["always", "off"];

export class Background {
  /**
   * @param {HTMLElement} panel
   * @param {() => void} changed called after every change
   */
  constructor(panel, changed) {
    const part = (selector) => find(selector, panel);
    this.memory = part("#memory");
    this.note = part("#note");
    this.depth = part("#note-depth");
    this.list = part("#lore");
    this.changed = changed;
    this.lore = [];
    this.template = find("#entry");
    panel.addEventListener("input", changed);
    const inSettings = find("#setting-memory");
    this.memories = [this.memory, inSettings];
    for (const box of this.memories) box.addEventListener("input", () => this.#remember(box.value));
    inSettings.addEventListener("input", changed);
    find("#add-entry").addEventListener("click", () => this.#add([{ ...EMPTY_ENTRY }]));
    this.status = part("#lore-status");
    const fail = (error) => (this.status.textContent = `Nothing was imported: ${error.message}.`);
    part("#import-lore").addEventListener("change", ({ target }) => this.#import(target).catch(fail));
  }

  get values() {
    return { memory: this.memory.value, note: this.note.value, depth: Math.max(1, Math.round(this.depth.valueAsNumber) || DEPTH), lore: this.lore };
  }

  set values(stored) {
    const { memory, note, depth, lore } = readBackground(stored);
    this.#remember(memory);
    this.note.value = note;
    this.depth.value = depth;
    this.lore = lore;
    this.list.replaceChildren(...this.lore.map((entry) => this.#row(entry)));
  }

  /** Show the same memory in both boxes. The box that is being typed in keeps its cursor. */
  #remember(memory) {
    for (const box of this.memories) if (box.value !== memory) box.value = memory;
  }

  get isEmpty() {
    return !this.memory.value.trim() && !this.note.value.trim() && !this.lore.length;
  }

  async #import(input) {
    const [file] = input.files;
    if (!file) return;
    const { entries, ignored } = importLorebook(await readJson(file).finally(() => (input.value = "")));
    this.#add(entries);
    const count = `${entries.length} ${entries.length === 1 ? "entry" : "entries"} imported.`;
    this.status.textContent = ignored.length ? `${count} Ignored, because this page doesn't support it: ${ignored.join(", ")}.` : count;
  }

  #add(entries) {
    const rows = entries.map((entry) => this.#row(entry));
    this.lore = [...this.lore, ...entries];
    this.list.append(...rows);
    if (entries.length === 1) {
      rows[0].open = true;
      rows[0].querySelector("[name=keys]").focus();
    }
    this.list.dispatchEvent(new Event("input", { bubbles: true })); // to save it
  }

  #row(entry) {
    const row = this.template.content.cloneNode(true).firstElementChild;
    const box = (name) => row.querySelector(`[name=${name}]`);
    const title = row.querySelector(".named");
    const draw = () => {
      title.textContent = entry.name || entry.keys || "New entry";
      row.classList.toggle("off", entry.off);
      box("keys").disabled = box("also").disabled = box("never").disabled = entry.always;
    };
    for (const name of TEXTS) box(name).value = entry[name];
    for (const name of CHOICES) box(name).checked = entry[name];
    box("depth").value = entry.depth ?? "";
    row.addEventListener("input", () => {
      for (const name of TEXTS) entry[name] = box(name).value;
      for (const name of CHOICES) entry[name] = box(name).checked;
      entry.depth = Math.max(1, Math.round(box("depth").valueAsNumber)) || null;
      draw();
    });
    row.querySelector("[value=remove]").addEventListener("click", () => {
      this.lore = this.lore.filter((each) => each !== entry);
      row.remove();
      if (isFocusLost()) find("#add-entry").focus();
      this.list.dispatchEvent(new Event("input", { bubbles: true }));
    });
    draw();
    return row;
  }
}
