// The way through the tree: the path to where the story is, and all places that can be returned to.

import { ROOT, textOf } from "./tree.js";

const shorten = (text, length) => {
  const words = text.trim().replace(/\s+/g, " ");
  return words.length > length ? `${words.slice(0, length).trimEnd()}…` : words || "(blank)";
};

function button(text, isHere, onClick) {
  const element = document.createElement("button");
  element.type = "button";
  element.textContent = text;
  if (isHere) element.setAttribute("aria-current", "true");
  element.addEventListener("click", onClick);
  return element;
}

function item(...content) {
  const element = document.createElement("li");
  element.append(...content);
  return element;
}

// The path as a row of buttons, the start first.
export function drawPath(list, tree, go) {
  const nodes = tree.path(tree.current);
  const start = item(button("Start", tree.current === ROOT, () => go(ROOT)));
  const others = nodes.map((node) => item(button(shorten(textOf(node), 28), node.id === tree.current, () => go(node.id))));
  list.replaceChildren(start, ...others);
}

// The whole tree as nested lists, without the alternatives that nothing follows.
export function drawTree(list, tree, go) {
  const branch = (node) => {
    const below = tree.places(node.id);
    const element = item(button(shorten(textOf(node), 60), node.id === tree.current, () => go(node.id)));
    if (below.length) {
      const inner = document.createElement("ul");
      inner.append(...below.map(branch));
      element.append(inner);
    }
    return element;
  };
  const places = tree.places(ROOT).map(branch);
  list.replaceChildren(...(places.length ? places : [item("Nothing yet: the story begins when you generate.")]));
}
