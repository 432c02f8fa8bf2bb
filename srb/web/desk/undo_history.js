// @ts-check
// Undo and redo: the steps of edits.js, and the two buttons.

import { find } from "../lib/dom.js";
import { plural, showStatus } from "../lib/messages.js";
import { spread } from "../story/authorship.js";
import { inverse, Steps, unpackChanges } from "../story/edits.js";

export class UndoHistory {
  /** @param {import("./desk.js").Desk} desk */
  constructor(desk) {
    this.desk = desk;
    this.steps = new Steps();
    this.undoButton = find("#undo");
    this.redoButton = find("#redo");
  }

  push(step) {
    this.steps.push(step);
    this.draw();
  }

  draw() {
    const { done, undone } = this.steps;
    for (const [button, steps] of /** @type {[any, any[]][]} */ ([[this.undoButton, done], [this.redoButton, undone]])) {
      button.disabled = !steps.length;
      button.dataset.kind = steps.at(-1)?.kind ?? "";
    }
  }

  /** Undo the last step, and return it. */
  undo() {
    this.desk.story.endComposing();
    return this.#again(this.steps.undo(), true);
  }

  redo() {
    this.desk.story.endComposing();
    return this.#again(this.steps.redo(), false);
  }

  #again(step, isBack) {
    if (!step) return null;
    showStatus(step.kind === "replace" && !isBack ? `${plural(unpackChanges(step.changes).length, "place")} replaced.` : ""); // else it says what is undone
    const { desk } = this;
    const before = desk.story.content;
    const node = desk.tree.nodes.get(step.kept ?? step.node);
    if (node) desk.growing.add(node); // saved with the next change
    if (["discard", "restore"].includes(step.kind) && node) node.discarded = isBack === (step.kind === "restore");
    if (step.kind === "go") {
      if (node) node.kept = !isBack;
      this.#go(isBack ? step.from : step.to);
    }
    if (["text", "replace"].includes(step.kind)) this.#type(step, isBack);
    desk.show();
    if (step.kept) desk.wordCount.changed(before, desk.story.content, { isBack: true });
    return step;
  }

  #go({ current, shown }) {
    const { tree } = this.desk;
    if (![current, ...shown].every((id) => tree.has(id))) return showStatus("That place no longer exists.");
    tree.go(current, shown);
  }

  #type(step, isBack) {
    const { place, by } = step;
    const { desk } = this;
    const changes = step.kind === "replace" ? unpackChanges(step.changes) : [step];
    const again = () => changes.map(({ at, removed, added }) => ({ at, removed, added, marks: spread(by, added.length) }));
    if (place !== desk.tree.current) this.#go({ current: place, shown: [place] });
    desk.show();
    const before = desk.story.content;
    const isDone = desk.story.edit(isBack ? inverse(changes) : again());
    if (isDone) return desk.wordCount.changed(before, desk.story.content, { isBack: true });
    this.steps.drop(step);
    showStatus("The text has changed, so this can't be undone.");
  }
}
