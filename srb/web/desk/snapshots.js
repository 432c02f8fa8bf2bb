// @ts-check
// Snapshots and bookmarks: names of nodes, in the panel of stories. A snapshot is the node of the whole text as it was.

import { create, find, isFocusLost, replaceItems } from "../lib/dom.js";
import { words } from "../lib/length.js";
import { plural, safely, showStatus, when } from "../lib/messages.js";
import { changedParts } from "../story/text_merge.js";
import { shorten } from "../story/titles.js";
import { textOf } from "../story/tree.js";

/** @typedef {import("../story/tree.js").StoryNode} StoryNode */

const NAME = 40; // characters of a bookmark's name
const AROUND = 120; // characters of unchanged text to show around a change

/** Return what to show of two texts: what was removed and what was added, with some text around. */
export function comparison(/** @type {string} */ before, /** @type {string} */ after) {
  const shown = /** @type {{ tag: "span" | "del" | "ins", text: string }[]} */ ([]);
  const add = (tag, text) => text && shown.push({ tag, text });
  let done = 0;
  const same = (text, isFirst, isLast) => {
    const [head, tail] = [isFirst ? 0 : AROUND, isLast ? 0 : AROUND];
    const [first, last] = [text.slice(0, head).replace(/\S*$/, ""), text.slice(text.length - tail).replace(/^\S*/, "")]; // whole words
    add("span", text.length <= head + tail ? text : `${first}…${last}`);
  };
  const parts = changedParts(before, after);
  for (const { from, to, at, end } of parts) {
    same(before.slice(done, from), !done, false);
    add("del", before.slice(from, to));
    add("ins", after.slice(at, end));
    done = to;
  }
  if (parts.length) same(before.slice(done), false, true);
  return shown;
}

export class Snapshots {
  #words = new WeakMap(); // by node
  dialog = find("#comparison"); // shows what has changed since one of them

  /** @param {import("./desk.js").Desk} desk */
  constructor(desk) {
    this.desk = desk;
    find("#snapshot").addEventListener("click", safely(() => this.#take()));
  }

  draw() {
    const marked = [...this.desk.tree.nodes.values()].filter(({ name }) => name);
    replaceItems(find("#bookmarks"), marked.map((node) => this.#row(node)));
  }

  #row(node) {
    const { name, created, batch } = node;
    const button = (textContent, ariaLabel, onclick) => create("button", { type: "button", textContent, ariaLabel, onclick });
    const go = button(name, null, safely(() => this.#go(node)));
    go.dataset.place = node.id;
    const compare = button("Compare", `Compare ${name} with the text now`, () => this.#compare(node));
    const remove = button("Remove", `Remove the name ${name}`, () => {
      this.set(node, "");
      if (isFocusLost()) find("#snapshot").focus();
    });
    const about = create("small", { textContent: `${when.format(created ?? batch)} · ${plural(this.#count(node), "word")}` });
    return create("li", {}, go, compare, remove, about);
  }

  #textOf({ id }) {
    const { tree } = this.desk;
    return tree.text(id) + tree.after(id);
  }

  #count(node) {
    if (!this.#words.has(node)) this.#words.set(node, words(this.#textOf(node)));
    return this.#words.get(node);
  }

  /** Go back to one of them. What was typed there since becomes a node of its own; of nothing, only Undo knows. */
  async #go({ id }) {
    const { desk } = this;
    find(".panel:modal")?.close(); // it would cover the place
    if (desk.drafts.has(id)) {
      desk.go(id);
      const now = this.#now;
      const { text, marks } = desk.drafts.inTree(id);
      if (!now.text) desk.story.type(text, marks);
      else {
        const typed = await desk.write(now);
        desk.settle(now, typed, [typed]);
      }
    }
    desk.searchPanel.go(id);
  }

  get #now() {
    const { length } = this.desk.story.value;
    return this.desk.take([length, length]);
  }

  /** Name the text as it is now. The writer stays at this place. */
  async #take() {
    const { desk } = this;
    const now = this.#now;
    const { name = "" } = desk.tree.nodes.get(desk.tree.written(now.before, now).id ?? "") ?? {};
    const said = prompt("Name this version of your text, such as “before the rewrite”:", name)?.trim();
    if (said) this.set(desk.tree.nodes.get(await desk.write(now)), said);
  }

  #compare(node) {
    const shown = comparison(this.#textOf(node), this.desk.story.value);
    find("h2", this.dialog).textContent = `“${node.name}” and now`;
    find(".hint", this.dialog).hidden = !shown.length;
    find(".compared", this.dialog).replaceChildren(...(shown.length ? shown.map(({ tag, text }) => create(tag, {}, text)) : ["Nothing has changed since."]));
    find(".main", this.dialog).onclick = safely(() => {
      this.dialog.close();
      return this.#go(node);
    });
    this.dialog.showModal();
  }

  toggle(/** @type {StoryNode} */ node) {
    this.set(node, node.name ? "" : shorten(textOf(node), NAME));
  }

  /** Name a node; "" removes its name. */
  set(node, /** @type {string} */ name) {
    node.name = name || undefined;
    this.desk.save(node);
    this.desk.cards.update(node);
    this.desk.drawTree();
    showStatus(name ? `“${name}” is in Story.` : "The name was removed.");
  }
}
