// Asking the model instead of continuing a text: turns, as its chat template writes them, that are nodes of the tree.

import { applyTemplate } from "./api.js";
import { WRITER } from "./marks.js";
import { isTurn, ROOT, said, spoken, textOf } from "./tree.js";

const MARK = "a8f2c7question"; // where the question is going to stand

export class Asking {
  // changed() when the switch was moved.
  constructor(element, changed) {
    const find = (name) => element.querySelector(name);
    [this.on, this.off, this.system, this.turns] = ["#ask", "#continue", "#system", "#turns"].map(find);
    Object.assign(this, { element, story: find("#story"), generate: document.querySelector("#generate") });
    for (const choice of [this.on, this.off]) choice.addEventListener("change", changed);
  }

  get isOn() {
    return this.on.checked;
  }

  set isOn(asks) {
    this[asks ? "on" : "off"].checked = true;
  }

  get values() {
    return { asks: this.isOn, system: this.system.value };
  }

  set values({ asks, system }) {
    this.isOn = asks;
    this.system.value = system ?? "";
  }

  // What the text box has up to where the story is, as the tree knows it.
  text(tree) {
    const here = tree.nodes.get(tree.current);
    return this.isOn ? (isTurn(here) ? said(here) : "") : tree.own(tree.current);
  }

  // The same for Manuscript.show.
  shown(tree) {
    const text = this.text(tree);
    if (this.isOn) return { text, marks: WRITER.repeat(text.length) };
    const behind = tree.after(tree.current);
    return { text: text + behind, marks: tree.marks(tree.current), behind: behind.length };
  }

  // The node that the text in the box goes on from: in a conversation, what is in the box stands behind the last turn.
  before(tree) {
    const here = tree.nodes.get(tree.current);
    if (!this.isOn) return tree.beginning(tree.current);
    return isTurn(here) ? here.parent : tree.current;
  }

  // Shows the conversation before what is in the text box.
  draw(tree) {
    const parts = spoken(tree.path(this.before(tree)));
    this.element.classList.toggle("asking", this.isOn);
    this.generate.textContent = this.isOn ? "Ask" : "Generate";
    this.story.placeholder = this.isOn ? "Ask …" : parts.length ? "Write how the answer goes on …" : "Write how it begins …";
    const before = this.turns.children.length;
    this.turns.replaceChildren(...parts.map(({ isAsked, text }) => {
      const turn = document.createElement("li");
      turn.className = isAsked ? "question" : "answer";
      turn.textContent = text.trim();
      return turn;
    }));
    if (before && parts.length > before) this.turns.lastElementChild.scrollIntoView({ block: "nearest" });
  }

  // The node of a question, as Tree.written has one of a text. Without a question it is where the story is.
  async written(tree, question) {
    const here = tree.nodes.get(tree.current);
    if (!question.trim()) {
      if (!here) throw new Error("Write what you want to ask.");
      return { id: here.id };
    }
    let parent = isTurn(here) ? here.parent : tree.current;
    let path = tree.path(parent);
    if (!isTurn(path[0])) [parent, path] = [ROOT, []]; // a conversation doesn't go on from a text
    const [before, after] = (await applyTemplate([...this.#messages(path), { role: "user", content: MARK }])).split(MARK);
    if (after === undefined) throw new Error("The model's chat template leaves out what is asked.");
    const text = behind(before, path) + question + after;
    const same = tree.children(parent).find((node) => isTurn(node) && textOf(node) === text);
    return same ?? { parent, pieces: [{ text, ids: null }], typed: true, label: question };
  }

  #messages(path) {
    const messages = this.system.value ? [{ role: "system", content: this.system.value }] : [];
    for (const node of path) {
      if (isTurn(node)) messages.push({ role: "user", content: said(node) });
      else if (messages.at(-1).role === "assistant") messages.at(-1).content += textOf(node);
      else messages.push({ role: "assistant", content: textOf(node) });
    }
    return messages;
  }
}

// What the template writes behind the last answer of a path. Templates may take the spaces around an answer away.
function behind(written, path) {
  if (!path.length) return written;
  const whole = path.slice(path.findLastIndex(isTurn) + 1).map(textOf).join("");
  const answer = written.includes(whole) ? whole : whole.trim();
  return written.slice(written.lastIndexOf(answer) + answer.length);
}
