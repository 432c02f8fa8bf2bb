// @ts-check
// The tree of a story: as a list, or as a drawing of all its nodes from left to right.

import { find, focused, replaceItems } from "../lib/dom.js";
import { loadLocal, saveLocal } from "../lib/local_storage.js";
import { nodeTitle, shorten } from "../story/titles.js";
import { ROOT, textOf } from "../story/tree.js";
import { chapters } from "./chapters.js";
import { fitText, layout, MARGIN } from "./tree_layout.js";
import { drawTree, rest } from "./tree_list.js";

/** @typedef {import("../story/tree.js").StoryNode} StoryNode */

const KEY = "srb-tree";
const [LEAST, MOST] = [0.1, 3];
const STEP = 1.25; // zoom factor
const [NAME, WORDS] = [120, 400]; // characters of a name, and of the text below the drawing
const STILL = 4; // pixels that the mouse may move during a click
const LEAST_ROOM = 50; // pixels; a narrower label has only its sign
const NEAR = 14; // pixels around a place that belong to it

/** A line from a place to one further right. */
const line = (from, to) =>
  from.y === to.y ? `M${from.x} ${from.y}H${to.x}` : `M${from.x} ${from.y}C${(from.x + to.x) / 2} ${from.y} ${(from.x + to.x) / 2} ${to.y} ${to.x} ${to.y}`;

/** A rewritten passage is named by its own words: the text around it may start like others. */
const chapterOf = (node) => !node.passage && chapters(textOf(node))[0]?.title;

const isRunning = (node) => !node.typed && node.end === undefined;

export class TreeDrawing {
  #places = new Map(); // by id
  #items = new Map(); // their elements
  #at = /** @type {string | null} */ (null); // the place that was shown last
  #scale = 1;
  list = find("#tree");
  part = find("#picture");
  box = find("#drawing");
  svg = find("#drawing svg");
  button = find("#draw");

  /** @param {import("./desk.js").Desk} desk */
  constructor(desk) {
    this.desk = desk;
    this.#choose(loadLocal(KEY).isDrawn === true);
    this.button.addEventListener("click", () => {
      this.#choose(!this.isDrawn);
      saveLocal(KEY, { isDrawn: this.isDrawn });
      this.draw();
    });
    find("#stories").addEventListener("close", () => (this.#at = null));
    find("#smaller").addEventListener("click", () => this.#zoom(this.#scale / STEP));
    find("#larger").addEventListener("click", () => this.#zoom(this.#scale * STEP));
    find("#whole").addEventListener("click", () => this.#showWhole());
    this.box.addEventListener("keydown", (event) => this.#press(event));
    this.box.addEventListener("focusin", () => this.#showWords());
    this.#listenToHands();
  }

  #choose(isDrawn) {
    this.isDrawn = isDrawn;
    this.#at = null;
    this.list.hidden = isDrawn;
    this.part.hidden = find("#zooms").hidden = !isDrawn;
    this.button.textContent = isDrawn ? "Show as a list" : "Show as a drawing";
    document.body.classList.toggle("tree-drawn", isDrawn);
  }

  /** Draw the tree. The drawing is updated only while it is visible. */
  draw() {
    const { tree } = this.desk;
    if (this.isDrawn) this.list.replaceChildren();
    else drawTree(this.desk);
    if (!this.part.checkVisibility()) return;
    const { places, width, height } = layout(tree, (id) => id === tree.current || this.#isNamed(id));
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.#places = new Map(places.map((place) => [place.id, place]));
    const onPath = new Set([ROOT, ...tree.path(tree.current).map((node) => node.id)]);
    const lines = (isOnPath) => places.filter(({ id, parent }) => parent && onPath.has(id) === isOnPath).map((place) => line(this.#places.get(place.parent), place));
    const items = places.map((place) => this.#item(place, onPath));
    this.#items = new Map(places.map(({ id }, k) => [id, items[k]]));
    replaceItems(this.svg, [this.#shape("path", { d: lines(false).join("") }), this.#shape("path", { class: "on-path", d: lines(true).join("") }), ...items]);
    this.#size();
    if (!this.#at) find("#tree-title").scrollIntoView();
    if (this.#at !== tree.current) this.#reveal(tree.current);
    this.#at = tree.current;
    this.#point(null);
  }

  update(/** @type {StoryNode} */ node) {
    const item = this.#items.get(node.id);
    item?.classList.toggle("running", isRunning(node));
    item?.setAttribute("aria-label", this.#nameOf(node.id));
  }

  #shape(tag, fields, ...children) {
    const shape = document.createElementNS(this.svg.namespaceURI, tag);
    for (const [name, value] of Object.entries(fields)) shape.setAttribute(name, value);
    shape.append(...children);
    return shape;
  }

  #isNamed(id) {
    const node = this.desk.tree.nodes.get(id);
    return Boolean(node?.name) || this.desk.story.drafts.has(id) || Boolean(node && chapters(textOf(node)).length);
  }

  #item({ id, depth, x, y, isSmall, room }, onPath) {
    const { tree, story } = this.desk;
    const node = tree.nodes.get(id);
    const isCurrent = id === tree.current;
    const states = {
      small: isSmall, typed: !node || node.typed, kept: node?.kept, "on-path": onPath.has(id), current: isCurrent,
      draft: story.drafts.has(id), running: node && isRunning(node), named: node?.name, late: x > this.#whole.width / 2,
    };
    const names = Object.keys(states).filter((name) => states[name]);
    const item = this.#shape("g", {
      class: names.join(" "), role: "treeitem", "data-place": id, "aria-level": depth + 1,
      "aria-selected": isCurrent, "aria-label": this.#nameOf(id), tabindex: isCurrent ? 0 : -1, transform: `translate(${x} ${y})`,
    });
    item.append(this.#shape("circle", { r: isSmall ? 3 : isCurrent ? 7 : 5 }));
    if (room) item.append(this.#shape("text", { x: -5, y: -11, "aria-hidden": true }, this.#labelOf(id, room)));
    return item;
  }

  #labelOf(id, room) {
    const { tree, story } = this.desk;
    const node = tree.nodes.get(id);
    const sign = node?.name ? "★ " : story.drafts.has(id) ? "✎ " : "";
    const words = node ? (node.name ?? (chapterOf(node) || nodeTitle(node, NAME))) : "Start";
    return room < LEAST_ROOM ? sign : fitText(sign + words, room);
  }

  #nameOf(id) {
    const { tree, story } = this.desk;
    const node = tree.nodes.get(id);
    const own = node ? [node.name && `bookmark ${node.name}`, chapterOf(node) && `chapter ${chapterOf(node)}`, node.kept && "kept", isRunning(node) && "being written"] : [];
    const states = [...own, story.drafts.has(id) && "with a draft"].filter(Boolean);
    return [node ? nodeTitle(node, NAME) : "Start", ...states].join(", ");
  }

  /** Highlight what the mouse points at, and show its words. */
  #point(item) {
    find(".pointed", this.svg)?.classList.remove("pointed");
    item?.classList.add("pointed");
    this.#showWords();
  }

  /** Show the words of the place that is pointed at or focused, or else of the current place. */
  #showWords() {
    const { tree, story } = this.desk;
    const { place } = (find(".pointed", this.svg) ?? find(":focus", this.svg) ?? this.#items.get(tree.current)).dataset;
    const node = tree.nodes.get(place);
    const draft = story.drafts.at(place);
    const words = node ? nodeTitle(node, WORDS) : "Start";
    find("#place-words").textContent = draft === undefined ? words : `Draft: ${shorten(rest(draft, tree.text(place)), WORDS)}`;
  }

  #press(event) {
    const id = /** @type {HTMLElement} */ (focused().closest("[data-place]"))?.dataset.place;
    if (!id || event.ctrlKey || event.metaKey || event.altKey) return;
    const zooms = { "+": "#larger", "=": "#larger", "-": "#smaller", 0: "#whole" };
    if (event.key === "Enter" || event.key === " ") this.desk.searchPanel.go(id);
    else if (event.key in zooms) find(zooms[event.key]).click();
    else if (/^Arrow|^Home$|^End$/.test(event.key)) this.#focus(this.#next(event.key, this.#places.get(id)));
    else return;
    event.preventDefault();
  }

  /** The place that a key leads to: along the branch, or above or below. */
  #next(key, { id, parent, x, y }) {
    const all = [...this.#places.values()];
    const siblings = all.filter((place) => place.parent === parent);
    const near = (isThere) => {
      const far = (place) => Math.abs(place.y - y) + 2 * Math.abs(place.x - x);
      return all.filter(isThere).sort((a, b) => far(a) - far(b))[0];
    };
    const byHeight = (places) => places.sort((a, b) => a.y - b.y);
    const found = {
      ArrowRight: () => byHeight(all.filter((place) => place.parent === id))[0],
      ArrowLeft: () => this.#places.get(parent),
      ArrowDown: () => byHeight(siblings.filter((place) => place.y > y))[0] ?? near((place) => place.y > y),
      ArrowUp: () => byHeight(siblings.filter((place) => place.y < y)).at(-1) ?? near((place) => place.y < y),
      Home: () => this.#places.get(ROOT),
      End: () => this.#places.get(this.desk.tree.current),
    };
    return found[key]()?.id;
  }

  #focus(id) {
    this.#items.get(id)?.focus({ preventScroll: true });
    if (id) this.#reveal(id, false);
  }

  /** Scroll a place to the middle, or only as far as needed. */
  #reveal(id, isCentred = true) {
    const { x, y } = this.#places.get(id);
    const [left, top] = [x * this.#scale, y * this.#scale];
    const { clientWidth: width, clientHeight: height, scrollLeft, scrollTop } = this.box;
    const room = 4 * MARGIN;
    const isSeen = left > scrollLeft + MARGIN && left < scrollLeft + width - room && top > scrollTop + room && top < scrollTop + height - MARGIN;
    if (isCentred || !isSeen) this.box.scrollTo(left - width / 2, top - height / 2);
  }

  /** The size of the drawing. */
  get #whole() {
    return this.svg.viewBox.baseVal;
  }

  #size() {
    this.svg.style.width = `${this.#whole.width * this.#scale}px`;
    this.svg.style.height = `${this.#whole.height * this.#scale}px`;
    this.svg.style.setProperty("--scale", this.#scale);
    this.svg.classList.toggle("far", this.#scale < 0.5);
  }

  /** Zoom around a point of the box. */
  #zoom(scale, x = this.box.clientWidth / 2, y = this.box.clientHeight / 2) {
    const { scrollLeft, scrollTop } = this.box;
    const before = this.#scale;
    this.#scale = Math.min(MOST, Math.max(LEAST, scale));
    this.#size();
    const by = this.#scale / before;
    this.box.scrollTo((scrollLeft + x) * by - x, (scrollTop + y) * by - y);
  }

  #showWhole() {
    this.#zoom(Math.min(1, this.box.clientWidth / this.#whole.width, this.box.clientHeight / this.#whole.height));
  }

  /** The place under the mouse or a finger. */
  #under({ target, clientX, clientY }) {
    const { left, top } = this.svg.getBoundingClientRect();
    const [x, y] = [(clientX - left) / this.#scale, (clientY - top) / this.#scale];
    const far = (place) => Math.hypot(place.x - x, place.y - y);
    const nearest = [...this.#places.values()].reduce((a, b) => (far(b) < far(a) ? b : a));
    return far(nearest) * this.#scale < NEAR ? this.#items.get(nearest.id) : target.closest("[data-place]");
  }

  /** Listen to the wheel with Ctrl, which is also a pinch on a touchpad; to two fingers, dragging, and clicks. */
  #listenToHands() {
    const { box } = this;
    const at = ({ clientX, clientY }) => {
      const { left, top } = box.getBoundingClientRect();
      return [clientX - left, clientY - top];
    };
    box.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.#zoom(this.#scale * Math.exp(-event.deltaY / 200), ...at(event));
    }, { passive: false });

    let pinch = /** @type {{ far: number, scale: number } | null} */ (null); // the initial distance of two fingers, and the scale
    const far = ([a, b]) => Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY);
    box.addEventListener("touchstart", ({ touches }) => (pinch = touches.length === 2 ? { far: far(touches), scale: this.#scale } : null));
    box.addEventListener("touchmove", (event) => {
      if (!pinch) return;
      event.preventDefault();
      const [a, b] = event.touches;
      const middle = { clientX: (a.clientX + b.clientX) / 2, clientY: (a.clientY + b.clientY) / 2 };
      this.#zoom((pinch.scale * far([a, b])) / pinch.far, ...at(middle));
    }, { passive: false });

    let moved = 0;
    box.addEventListener("pointerdown", () => (moved = 0));
    box.addEventListener("pointermove", (event) => {
      if (event.pointerType !== "mouse") return;
      if (!(event.buttons & 1)) return this.#point(this.#under(event));
      moved += Math.abs(event.movementX) + Math.abs(event.movementY);
      if (moved > STILL) box.scrollBy(-event.movementX, -event.movementY);
    });
    box.addEventListener("pointerleave", () => this.#point(null));
    box.addEventListener("click", (event) => {
      const item = moved <= STILL && this.#under(event);
      if (item) this.desk.searchPanel.go(item.dataset.place);
    });
  }
}
