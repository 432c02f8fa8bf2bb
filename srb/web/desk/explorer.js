// @ts-check
// Likely continuations, as a tree to explore: phrases, or single tokens.

import { explore } from "../lib/api.js";
import { create, find, findAll, leaveText } from "../lib/dom.js";
import { plural, safely } from "../lib/messages.js";
import { percent, visible } from "./token_preview.js";

const HESITATION = 2.5; // nats; below it, the text runs on without a fork

const NODES = { top_k: 5, max_nodes: 120 };

export class Explorer {
  nodes = /** @type {Map<number, any>} */ (new Map()); // by id: the server's nodes, with their `item`
  place = /** @type {any} */ (null); // the story's node that they continue, and its prompt
  dialog = find("#explorer");
  tree = find(".explored", this.dialog);
  status = find(".status-line", this.dialog);
  chosen = find(".chosen", this.dialog);
  take = find(".take", this.dialog);
  runs = find("input", this.dialog);

  /** @param {import("./desk.js").Desk} desk */
  constructor(desk) {
    this.desk = desk;
    find("#explore").addEventListener("click", safely(() => this.#open()));
    this.runs.addEventListener("change", () => this.#begin());
    this.take.addEventListener("click", this.#pick);
    this.tree.addEventListener("click", ({ target }) => this.#click(target.closest("[role=treeitem]")));
    this.tree.addEventListener("dblclick", this.#pick);
    this.tree.addEventListener("keydown", (event) => this.#key(event));
    this.tree.addEventListener("focusin", ({ target }) => this.#choose(target));
    this.dialog.addEventListener("close", () => this.reading?.abort());
  }

  async #open() {
    this.place = await this.desk.writing.place();
    leaveText(find("#explore"));
    this.dialog.showModal();
    await this.#begin();
  }

  async #begin() {
    this.reading?.abort();
    const reading = (this.reading = new AbortController());
    this.nodes.clear();
    this.tree.replaceChildren();
    this.#choose(null);
    this.status.textContent = "Looking ahead …";
    const fields = this.runs.checked ? { ...NODES, depth: 4, min_entropy: HESITATION } : { ...NODES, depth: 8 };
    try {
      await explore({ prompt: this.place.prompt, ...fields }, (node) => this.#add(node), reading.signal);
      this.status.textContent = `${plural(this.nodes.size, "continuation")}, the most probable first.`;
    } catch (error) {
      if (!reading.signal.aborted) this.status.textContent = error.message;
    }
  }

  #add(node) {
    const isEnd = node.finish_reason === "stop";
    const words = visible(isEnd ? `${node.text}(the end)` : node.text || "(a part of a character)");
    const chance = Math.exp(node.logprob);
    const about = { dataset: { id: node.id }, style: { "--chance": chance } };
    const fields = { role: "treeitem", ariaSelected: "false", tabIndex: this.nodes.size ? -1 : 0, ...about };
    const item = (node.item = create("div", fields, create("span", {}, words), create("span", {}, percent(chance))));
    const parent = this.nodes.get(node.parent);
    (parent ? this.#group(parent) : this.tree).append(create("li", { role: "none" }, item));
    this.nodes.set(node.id, node);
    if (this.nodes.size === 1) item.focus();
  }

  /** The list of an item's children. The most probable text is visible, other branches are closed. */
  #group({ id, parent, item }) {
    if (!item.nextElementSibling) {
      const group = create("ul", { role: "group", id: `explored-${id}` });
      item.setAttribute("aria-owns", group.id);
      item.after(group);
      const isFirst = !item.parentElement.previousElementSibling;
      const above = this.nodes.get(parent)?.item;
      open(item, isFirst && above?.getAttribute("aria-expanded") !== "false");
    }
    return item.nextElementSibling;
  }

  #path(item) {
    const path = [];
    for (let node = this.nodes.get(Number(item?.dataset.id)); node; node = this.nodes.get(node.parent)) path.unshift(node);
    return path;
  }

  #choose(item) {
    for (const each of findAll("[aria-selected=true]", this.tree)) Object.assign(each, { ariaSelected: "false", tabIndex: -1 });
    if (item) Object.assign(item, { ariaSelected: "true", tabIndex: 0 });
    this.item = item;
    this.chosen.textContent = this.#path(item).map((node) => node.text).join("");
    this.take.disabled = !item;
  }

  #click(item) {
    if (!item) return;
    const wasChosen = item === this.item;
    item.focus();
    const isOpen = item.getAttribute("aria-expanded");
    if (isOpen) open(item, !wasChosen || isOpen === "false");
  }

  /** Handle the keys of a tree view, as in the ARIA Authoring Practices Guide. */
  #key(event) {
    const item = this.item;
    if (!item || event.ctrlKey || event.metaKey || event.altKey) return;
    const inSight = findAll("[role=treeitem]", this.tree).filter((each) => each.checkVisibility());
    const isOpen = item.getAttribute("aria-expanded");
    const node = this.nodes.get(Number(item.dataset.id));
    const actions = {
      ArrowDown: () => inSight[inSight.indexOf(item) + 1]?.focus(),
      ArrowUp: () => inSight[inSight.indexOf(item) - 1]?.focus(),
      ArrowRight: () => (isOpen === "true" ? inSight[inSight.indexOf(item) + 1].focus() : isOpen && open(item, true)),
      ArrowLeft: () => (isOpen === "true" ? open(item, false) : this.nodes.get(node.parent)?.item.focus()),
      Home: () => inSight[0].focus(),
      End: () => inSight.at(-1).focus(),
      Enter: this.#pick,
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    event.stopPropagation();
    actions[event.key]();
  }

  #pick = safely(async () => {
    const { desk, place } = this;
    const path = this.#path(this.item);
    if (!path.length) return;
    this.dialog.close();
    desk.keep(await desk.add(desk.tree.explored(place.id, path)));
  });
}

const open = (item, isOpen) => item.setAttribute("aria-expanded", isOpen);
