// @ts-check
// Undo and redo: the steps of edits.js, and the two buttons.

import { find } from "../lib/dom.js";
import { plural, showStatus } from "../lib/messages.js";
import { Steps } from "../story/edits.js";
import { partsOf } from "../story/text_merge.js";
import { ChangeSet } from "../vendor/codemirror.js";

export class UndoHistory {
  steps = new Steps();

  /** @param {import("./desk.js").Desk} desk */
  constructor(desk) {
    this.desk = desk;
  }

  push(step, typed) {
    this.steps.push(step, typed);
    this.draw();
  }

  draw() {
    const { done, undone } = this.steps;
    for (const [selector, steps] of /** @type {[string, any[]][]} */ ([["#undo", done], ["#redo", undone]])) {
      const button = find(selector);
      button.disabled = !steps.length;
      button.dataset.kind = steps.at(-1)?.kind ?? "";
    }
  }

  undo() {
    return this.#again(this.steps.undo(), true);
  }

  redo() {
    return this.#again(this.steps.redo(), false);
  }

  #again(step, isBack) {
    if (!step) return null;
    showStatus(step.kind === "replace" && !isBack ? `${plural(partsOf(ChangeSet.fromJSON(step.changes)).length, "place")} replaced.` : ""); // else it says what is undone
    const { desk } = this;
    const before = desk.story.content;
    const node = desk.tree.nodes.get(step.kept ?? step.node);
    if (node) desk.growing.add(node); // saved with the next change
    if (["discard", "restore"].includes(step.kind) && node) node.discarded = isBack === (step.kind === "restore");
    if (step.kind === "go") {
      if (node) node.kept = !isBack;
      this.#go(isBack ? step.from : step.to);
    }
    if (["text", "replace"].includes(step.kind)) this.#type(step);
    desk.show();
    if (step.kept) desk.wordCount.changed(before, desk.story.content, { isBack: true });
    return step;
  }

  #go({ current, shown }) {
    const { tree } = this.desk;
    if (![current, ...shown].every((id) => tree.has(id))) return showStatus("That place no longer exists.");
    tree.go(current, shown);
  }

  #type(step) {
    const { desk } = this;
    if (step.place !== desk.tree.current) this.#go({ current: step.place, shown: [step.place] });
    desk.show();
    const done = desk.story.again(step);
    if (done) {
      Object.assign(step, done.back);
      desk.wordCount.typed(desk.story, done, { isBack: true });
    } else {
      this.steps.drop(step);
      showStatus("The text has changed, so this can't be undone.");
    }
  }
}
