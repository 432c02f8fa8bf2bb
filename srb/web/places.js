// The way through the tree: the path to where the story is, and all places that can be returned to.

import { ROOT, said } from "./tree.js";

const shorten = (text, length) => {
  const words = text.trim().replace(/\s+/g, " ");
  return words.length > length ? `${words.slice(0, length).trimEnd()}…` : words || "(blank)";
};

function button(tree, id, text, go) {
  const element = document.createElement("button");
  element.type = "button";
  element.textContent = text;
  element.dataset.place = id;
  if (id === tree.current) element.setAttribute("aria-current", "true");
  element.addEventListener("click", () => go(id));
  return element;
}

// Draws a list anew; the keyboard stays where it was.
function draw(list, items) {
  const place = list.contains(document.activeElement) ? document.activeElement.dataset.place : null;
  list.replaceChildren(...items);
  if (place) list.querySelector(`[data-place="${place}"]`)?.focus({ preventScroll: true });
}

function item(...content) {
  const element = document.createElement("li");
  element.append(...content);
  return element;
}

const LAST = 4; // of a long path, so many steps are shown; the tree has all of them

// The path as a row of buttons, the start first.
export function drawPath(list, tree, go) {
  const path = tree.path(tree.current);
  const nodes = path.slice(-LAST);
  const start = item(button(tree, ROOT, "Start", go));
  const between = path.length > LAST ? [item("…")] : [];
  draw(list, [start, ...between, ...nodes.map((node) => item(button(tree, node.id, shorten(said(node), 28), go)))]);
}

// The whole tree as nested lists, without the alternatives that nothing follows.
export function drawTree(list, tree, go) {
  const branch = (node) => {
    const below = tree.places(node.id);
    const element = item(button(tree, node.id, shorten(said(node), 60), go));
    if (below.length) {
      const inner = document.createElement("ul");
      inner.append(...below.map(branch));
      element.append(inner);
    }
    return element;
  };
  const places = tree.places(ROOT).map(branch);
  draw(list, places.length ? places : [item("Nothing yet: the story begins when you generate.")]);
}
