// @ts-check
// The places of the text that a search finds, and its results in the whole tree.

import { create, find, findAll, replaceItems } from "../lib/dom.js";
import { plural, showStatus } from "../lib/messages.js";
import { places, searchTree, step } from "../story/search.js";

const MOST = 100; // results to show

/**
 * Show a search result with the text around it.
 * @param {{ before: string, match: string, after: string }} result
 */
export const highlightMatch = ({ before, match, after }) => [before, create("mark", { textContent: match }), after];

export class SearchPanel {
  panel = find("#search");
  query = find("#find");
  finding = find("#finding");
  options = { isCaseSensitive: find("#find-case"), isWholeWords: find("#find-words") };
  nTexts = 0; // of the tree that match

  /** @param {import("./desk.js").Desk} desk */
  constructor(desk) {
    this.desk = desk;
    for (const each of [this.query, ...Object.values(this.options)]) each.addEventListener("input", () => this.draw());
    this.query.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.isComposing || !this.#places.length) return;
      event.stopImmediatePropagation(); // without a place in the text, Enter searches the other stories
      this.#step(event.shiftKey ? -1 : 1);
    });
    const onClick = (selector, action) => find(selector).addEventListener("click", action);
    onClick("#find-next", () => this.#step(1));
    onClick("#find-previous", () => this.#step(-1));
    onClick("#replace-one", () => this.#replaceOne());
    onClick("#replace-all", () => this.#replace(this.#places));
  }

  /** Search for the selection, or for the same as before. */
  begin() {
    const { value, selection } = this.desk.story;
    const selected = value.slice(...selection);
    if (selected.trim() && !selected.includes("\n") && selected !== this.query.value) {
      this.query.value = selected;
      this.query.dispatchEvent(new Event("input")); // other_stories.js listens, too
    }
    this.query.select();
    this.draw();
  }

  get #how() {
    return Object.fromEntries(Object.entries(this.options).map(([name, box]) => [name, box.checked]));
  }

  get #places() {
    return places(this.desk.story.value, this.query.value, this.#how);
  }

  draw() {
    const { tree, story } = this.desk;
    const found = this.panel.open ? searchTree(tree, story.drafts.all, this.query.value, this.#how) : [];
    replaceItems(find("#found"), found.slice(0, MOST).map(({ id, kind, ...words }) => {
      const onclick = () => {
        find(".panel:modal")?.close(); // it would cover the place
        this.go(id, kind === "draft");
      };
      const button = create("button", { type: "button", onclick, dataset: { place: id } }, ...highlightMatch(words));
      return create("li", {}, button, create("small", { textContent: kind }));
    }));
    this.nTexts = found.length;
    this.count();
  }

  count() {
    const query = this.query.value;
    this.finding.hidden = !query;
    const all = this.panel.open ? this.#places : [];
    for (const button of findAll("button", this.finding)) button.disabled = !all.length;
    const [from, to] = this.desk.story.selection;
    const k = all.findIndex((each) => each[0] === from && each[1] === to);
    const more = this.nTexts > MOST ? ` (the newest ${MOST} are shown)` : "";
    const said = [
      all.length ? `${k < 0 ? "" : `${k + 1} of `}${all.length} in your text.` : "",
      this.nTexts ? `In the tree: ${plural(this.nTexts, "text")}${more}.` : "",
    ].filter(Boolean).join(" ");
    find("#found-count").textContent = query ? said || "Nothing found." : "";
  }

  #step(by) {
    const { story } = this.desk;
    const all = this.#places;
    if (!all.length) return this.count();
    if (this.panel.matches(":modal")) this.panel.close(); // it would cover the place
    story.select(...all[step(all, story.selection, by)]);
    this.count();
  }

  /** Replace the selected place, and go to the next one. */
  #replaceOne() {
    const [from, to] = this.desk.story.selection;
    const at = this.#places.filter((each) => each[0] === from && each[1] === to);
    if (at.length) this.#replace(at);
    this.#step(1);
  }

  #replace(all) {
    if (!all.length) return;
    this.desk.story.replace(all, find("#replacement").value);
    this.draw();
    showStatus(`${plural(all.length, "place")} replaced.`);
  }

  /**
   * @param {string} id
   * @throws {Error} if it isn't in the story any more
   */
  go(id, isDraft = this.desk.story.drafts.has(id)) {
    const { desk } = this;
    if (!desk.tree.has(id)) throw new Error("That text is no longer in this story.");
    const place = desk.tree.start(id);
    const node = desk.tree.nodes.get(place);
    if (isDraft || !node) desk.go(place);
    else desk.visit(node);
    if (desk.tree.current === place) desk.story.reveal(desk.tree.text(place).length, "center");
  }
}
