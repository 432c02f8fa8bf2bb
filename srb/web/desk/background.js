// @ts-check
// The background of a story: memory, author's note and lorebook. It is edited in the panel that shows what the model
// sees.

import { arrange, find, findAll, isFocusLost } from "../lib/dom.js";
import { followText } from "../settings/follow_text.js";
import { DEPTH, EMPTY_ENTRY, readBackground } from "../story/lorebook.js";
import { importLorebook, parseLorebook } from "../story/lorebook_files.js";
import { newId } from "../story/tree.js";

const TEXTS = ["name", "keys", "also", "never", "text"];
const CHOICES = ["always", "off"];

export class Background {
  memory = find("#memory");
  note = find("#note");
  depth = find("#note-depth");
  list = find("#lore");
  status = find("#lore-status");
  memories = [this.memory, find("#setting-memory")];
  entries = /** @type {{ entry: any, row: HTMLDetailsElement, follow: (entry: any) => void }[]} */ ([]); // of the lore

  /** @param {() => void} changed called after every change */
  constructor(changed) {
    for (const box of this.memories) box.addEventListener("input", () => this.#remember(box.value));
    for (const part of findAll("#model-view, #setting-memory")) part.addEventListener("input", changed);
    find("#add-entry").addEventListener("click", () => this.#add([{ ...EMPTY_ENTRY }]));
    const fail = (error) => (this.status.textContent = `Nothing was imported: ${error.message}.`);
    find("#import-lore").addEventListener("change", ({ target }) => this.#import(target).catch(fail));
  }

  get values() {
    const depth = Math.max(1, Math.round(this.depth.valueAsNumber) || DEPTH);
    return { memory: this.memory.value, note: this.note.value, depth, lore: this.entries.map(({ entry }) => ({ ...entry })) };
  }

  /** What is shown already stays as it is, with its cursor. */
  set values(stored) {
    const { memory, note, depth, lore } = readBackground(stored);
    this.#remember(memory);
    followText(this.note, note);
    if (depth !== this.values.depth) this.depth.value = depth;
    const known = new Map(this.entries.map((each) => [each.entry.id, each]));
    this.#show(lore.map((entry) => known.get(entry.id) ?? this.#make(entry)));
    lore.forEach((entry, k) => this.entries[k].follow(entry));
  }

  /** Show these entries. The keyboard leaves one that has gone. */
  #show(entries) {
    this.entries = entries;
    const hadKeyboard = this.list.contains(document.activeElement);
    arrange(this.list, entries.map(({ row }) => row));
    if (hadKeyboard && isFocusLost()) find("#add-entry").focus();
  }

  /** Show the same memory in both boxes. The box that is being typed in keeps its cursor. */
  #remember(memory) {
    for (const box of this.memories) followText(box, memory);
  }

  async #import(input) {
    const [file] = input.files;
    if (!file) return;
    const data = await file.arrayBuffer().finally(() => (input.value = ""));
    const { entries, ignored, unread } = importLorebook(parseLorebook(data));
    this.#add(entries);
    const says = [`${entries.length} ${entries.length === 1 ? "entry" : "entries"} imported.`];
    if (unread.length) says.push(`Not imported, because there is no text in it: ${unread.join(", ")}.`);
    if (ignored.length) says.push(`Ignored, because this page doesn't support it: ${ignored.join(", ")}.`);
    this.status.textContent = says.join(" ");
  }

  #add(added) {
    const entries = added.map((entry) => this.#make({ ...entry, id: newId() }));
    this.#show([...this.entries, ...entries]);
    if (entries.length === 1) {
      entries[0].row.open = true;
      find("[name=keys]", entries[0].row).focus();
    }
    this.list.dispatchEvent(new Event("input", { bubbles: true })); // to save it
  }

  #make(entry) {
    const row = find("#entry").content.cloneNode(true).firstElementChild;
    const box = (name) => find(`[name=${name}]`, row);
    const draw = () => {
      find(".named", row).textContent = entry.name || entry.keys || "New entry";
      row.classList.toggle("off", entry.off);
      box("keys").disabled = box("also").disabled = box("never").disabled = entry.always;
    };
    const follow = (others) => {
      Object.assign(entry, others);
      for (const name of TEXTS) followText(box(name), entry[name]);
      for (const name of CHOICES) box(name).checked = entry[name];
      followText(box("depth"), entry.depth ?? "");
      draw();
    };
    row.addEventListener("input", () => {
      for (const name of TEXTS) entry[name] = box(name).value;
      for (const name of CHOICES) entry[name] = box(name).checked;
      entry.depth = Math.max(1, Math.round(box("depth").valueAsNumber)) || null;
      draw();
    });
    find("[value=remove]", row).addEventListener("click", () => {
      this.#show(this.entries.filter((each) => each.entry !== entry));
      this.list.dispatchEvent(new Event("input", { bubbles: true }));
    });
    follow(entry);
    return { entry, row, follow };
  }
}
