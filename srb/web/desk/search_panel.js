// @ts-check
// Bookmarks and search results in the panel of stories: lists of places to go to.

import { create, find, replaceItems } from "../lib/dom.js";
import { showStatus } from "../lib/messages.js";
import { searchTree } from "../story/search.js";
import { shorten } from "../story/titles.js";
import { textOf } from "../story/tree.js";

/** @typedef {import("../story/tree.js").StoryNode} StoryNode */

const MOST = 100; // results to show
const NAME = 40; // characters of a bookmark's name

/**
 * Show a search result with the text around it.
 * @param {{ before: string, match: string, after: string }} result
 */
export const highlightMatch = ({ before, match, after }) => [before, create("mark", { textContent: match }), after];

export class SearchPanel {
  /**
   * @param {HTMLDialogElement} panel
   * @param {import("./desk.js").Desk} desk
   */
  constructor(panel, desk) {
    const part = (selector) => find(selector, panel);
    this.marks = part("#bookmarks");
    this.query = part("#find");
    this.found = part("#found");
    this.count = part("#found-count");
    this.name = part("#bookmark");
    this.panel = panel;
    this.desk = desk;
    this.query.addEventListener("input", () => this.#find());
    this.name.addEventListener("click", () => this.#ask());
  }

  /** Show the bookmarks, and search again. */
  draw() {
    const { tree } = this.desk;
    const marked = [...tree.nodes.values()].filter(({ name }) => name);
    replaceItems(this.marks, marked.map((node) => create("li", {}, this.#button(node.id, node.name))));
    this.name.disabled = !tree.nodes.has(tree.current);
    this.#find();
  }

  #find() {
    const { tree, story } = this.desk;
    const found = this.panel.open ? searchTree(tree, story.drafts.all, this.query.value) : [];
    replaceItems(this.found, found.slice(0, MOST).map(({ id, kind, ...words }) => {
      const button = this.#button(id, "", kind === "draft");
      button.append(...highlightMatch(words));
      return create("li", {}, button, create("small", { textContent: kind }));
    }));
    const more = found.length > MOST ? `; showing the newest ${MOST}` : "";
    this.count.textContent = this.query.value.trim() ? `${found.length || "Nothing"} found${more}.` : "";
  }

  #button(id, text, isDraft) {
    const button = create("button", { type: "button", textContent: text });
    button.dataset.place = id;
    button.addEventListener("click", () => {
      if (this.panel.matches(":modal")) this.panel.close(); // it would cover the place
      this.go(id, isDraft);
    });
    return button;
  }

  /**
   * Go to a result.
   * @param {string} id
   * @param {boolean} [isDraft]
   * @throws {Error} if it isn't in the story any more
   */
  go(id, isDraft = this.desk.story.drafts.has(id)) {
    const { desk } = this;
    if (!desk.tree.has(id)) throw new Error("This result isn't in the story any more.");
    const place = desk.tree.start(id);
    const node = desk.tree.nodes.get(place);
    if (isDraft || !node) desk.go(place);
    else desk.visit(node);
    if (desk.tree.current === place) desk.story.reveal(desk.tree.text(place).length, "center");
  }

  /** Ask for the bookmark of the current place. */
  #ask() {
    const { tree } = this.desk;
    const node = tree.nodes.get(tree.current);
    const name = prompt("Name of the bookmark. Leave it empty to remove the bookmark.", node.name ?? shorten(textOf(node), NAME));
    if (name !== null) this.set(node, name.trim());
  }

  /**
   * Add or remove the bookmark of an alternative.
   * @param {StoryNode} node
   */
  toggle(node) {
    this.set(node, node.name ? "" : shorten(textOf(node), NAME));
  }

  set(node, name) {
    node.name = name || undefined;
    this.desk.save(node);
    this.desk.cards.update(node);
    this.desk.drawTree();
    showStatus(name ? "Bookmark added in Story." : "Bookmark removed.");
  }
}
