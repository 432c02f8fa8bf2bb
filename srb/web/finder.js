// Bookmarks and what is found, in the panel of the story: lists of places to go to.

import { find } from "./find.js";
import { made } from "./made.js";
import { draw, shorten } from "./places.js";
import { tell } from "./say.js";
import { textOf } from "./tree.js";

const MOST = 100; // that are shown
const NAME = 40; // letters of a text that it's called by

// What was found, with what stands around it.
export const shown = ({ before, match, behind }) => [before, made("mark", { textContent: match }), behind];

export class Finder {
  constructor(panel, desk) {
    const select = (selector) => panel.querySelector(selector);
    [this.marks, this.query, this.found, this.count, this.name] = ["#bookmarks", "#find", "#found", "#found-count", "#bookmark"].map(select);
    Object.assign(this, { panel, desk });
    this.query.addEventListener("input", () => this.#find());
    this.name.addEventListener("click", () => this.#ask());
  }

  // Shows the bookmarks, and finds again what is looked for.
  draw() {
    const { tree } = this.desk;
    const marked = [...tree.nodes.values()].filter(({ name }) => name);
    draw(this.marks, marked.map((node) => made("li", {}, this.#button(node.id, node.name))));
    this.name.disabled = !tree.nodes.has(tree.current);
    this.#find();
  }

  #find() {
    const { tree, story } = this.desk;
    const found = this.panel.open ? find(tree, story.drafts.all, this.query.value) : [];
    draw(this.found, found.slice(0, MOST).map(({ id, kind, ...words }) => {
      const button = this.#button(id, "", kind === "draft");
      button.append(...shown(words));
      return made("li", {}, button, made("small", { textContent: kind }));
    }));
    const more = found.length > MOST ? `, the newest ${MOST} are shown` : "";
    this.count.textContent = this.query.value.trim() ? `${found.length || "Nothing"} found${more}.` : "";
  }

  #button(id, text, isDraft) {
    const button = made("button", { type: "button", textContent: text });
    button.dataset.place = id;
    button.addEventListener("click", () => {
      if (this.panel.matches(":modal")) this.panel.close(); // it covers what is gone to
      this.go(id, isDraft);
    });
    return button;
  }

  // Goes to where something was found. Throws an Error in words if that isn't there.
  go(id, isDraft = this.desk.story.drafts.has(id)) {
    const { desk } = this;
    if (!desk.tree.has(id)) throw new Error("What was found isn't in this story any more.");
    const place = desk.tree.start(id);
    const node = desk.tree.nodes.get(place);
    if (isDraft || !node) desk.go(place);
    else desk.visit(node);
    if (desk.tree.current === place) desk.story.reveal(desk.tree.text(place).length, "center");
  }

  // Names the place where the story is.
  #ask() {
    const { tree } = this.desk;
    const node = tree.nodes.get(tree.current);
    const name = prompt("What is this place called? Without a name it's no bookmark.", node.name ?? shorten(textOf(node), NAME));
    if (name !== null) this.set(node, name.trim());
  }

  // Makes a bookmark of an alternative, called by its first words, or takes it away.
  toggle(node) {
    this.set(node, node.name ? "" : shorten(textOf(node), NAME));
  }

  set(node, name) {
    node.name = name || undefined;
    this.desk.save(node);
    this.desk.cards.update(node);
    this.desk.drawTree();
    tell(name ? "It is a bookmark, in Story." : "It is no bookmark any more.");
  }
}
