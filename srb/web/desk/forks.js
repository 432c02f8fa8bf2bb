// @ts-check
// The way back from a kept alternative to the others.

/** @typedef {import("../story/tree.js").StoryNode} StoryNode */

/**
 * Find the alternative at the end of a path that was chosen among several.
 * @param {import("../story/tree.js").Tree} tree
 * @returns {StoryNode | undefined}
 */
export const chosenLast = (tree) => {
  const node = tree.nodes.get(tree.current);
  return node && !node.typed && tree.alternatives(node.parent).length > 1 ? node : undefined;
};

export class Forks {
  /**
   * @param {HTMLButtonElement} back
   * @param {import("./desk.js").Desk} desk
   */
  constructor(back, desk) {
    this.back = back;
    this.desk = desk;
    back.addEventListener("click", () => this.#goBack());
  }

  /** Show the way back while no alternatives are in sight. */
  draw() {
    const { cards, tree } = this.desk;
    const node = cards.cards.size ? undefined : chosenLast(tree);
    this.back.hidden = !node;
    if (node) this.back.textContent = `Back to the ${tree.alternatives(node.parent).length} alternatives`;
  }

  #goBack() {
    const { cards, tree } = this.desk;
    const node = chosenLast(tree);
    if (!node) return;
    const place = tree.start(node.parent);
    this.desk.go(place, [...new Set([node.parent, place])]);
    cards.reveal(node);
    cards.focus(node);
  }
}
