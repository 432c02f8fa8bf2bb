// @ts-check
// A chat with an editor about the story. An answer becomes part of the story only if the writer inserts it.

import { applyTemplate, tokenize } from "../lib/api.js";
import { create, find, isFocusLost } from "../lib/dom.js";
import { copy } from "../lib/files.js";
import { words } from "../lib/length.js";
import { numbers, percent, plural, showError } from "../lib/messages.js";
import { EDITOR, fromStored, isConversation, messages, toStored } from "../story/conversation.js";
import { endReason, Generation } from "../story/generation.js";
import { textOf } from "../story/tree.js";

const MOST_TOKENS = 500; // of an answer
const ENDED = endReason({ finish_reason: "stop", stop_reason: null });

/**
 * An answer in the panel. It is in a text box, so that a passage can be selected with the keyboard. The box can't be
 * typed in, but isn't `readonly`, because Chromium shows no cursor there. A copy of the text gives the height.
 */
class AnswerView {
  constructor(answer, actions) {
    this.answer = answer;
    this.element = find("#answer").content.firstElementChild.cloneNode(true);
    const part = (selector) => find(selector, this.element);
    this.box = part("textarea");
    this.copy = part("p");
    this.end = part(".end");
    this.take = part("[value=take]");
    this.choose = part("[value=choose]");
    this.box.ariaLabel = `Answer ${answer.index + 1}`;
    this.box.addEventListener("beforeinput", (event) => event.preventDefault());
    for (const name of ["select", "selectionchange"]) this.box.addEventListener(name, () => this.draw());
    for (const button of this.element.querySelectorAll("button")) button.addEventListener("click", () => actions[button.value](this));
  }

  get passage() {
    const { value, selectionStart, selectionEnd } = this.box;
    return value.slice(selectionStart, selectionEnd).trim() || value;
  }

  draw() {
    const text = textOf(this.answer).trimStart();
    const { length } = this.box.value;
    if (!text.startsWith(this.box.value)) this.box.value = text;
    else if (text.length > length) this.box.setRangeText(text.slice(length), length, length, "preserve"); // keeps the selection
    this.copy.textContent = `${text}\n`;
    this.take.disabled = !text.trim();
    this.take.textContent = this.passage === this.box.value ? "Insert" : "Insert selection";
    const { end } = this.answer;
    this.end.textContent = end === undefined || end === ENDED ? "" : end;
    this.element.classList.toggle("running", end === undefined);
  }
}

export class EditorChat {
  #turns = [];
  #shown = new Map(); // by answer
  #running = new Set(); // generations
  #isAsking = false;
  panel = find("#ask");
  system = find("#system");
  list = find("#talk");
  question = find("#question");
  count = find("#answers");
  status = find("[role=status]", this.panel);
  askButton = find(".main", this.panel);
  stopButton = find("[value=stop]", this.panel);
  clearButton = find("[value=clear]", this.panel);

  #actions = {
    take: ({ passage }) => {
      this.desk.insert(passage);
      this.status.textContent = "Inserted. Press Undo to remove it.";
      if (!this.panel.matches(":modal")) this.desk.story.resume(); // unless the panel covers the text
    },
    choose: ({ answer }) => {
      for (const turn of this.#turns) if (turn.answers.includes(answer)) turn.chosen = answer.index;
      this.#drawChosen();
      this.desk.savePage();
    },
    copy: ({ passage }) => this.#try(async () => {
      await copy(passage);
      this.status.textContent = "Copied.";
    }),
  };

  /** @param {import("./desk.js").Desk} desk */
  constructor(desk) {
    this.desk = desk;
    find("#asking").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#try(() => this.#ask());
    });
    this.stopButton.addEventListener("click", () => this.#try(() => Promise.all([...this.#running].map((each) => each.stop()))));
    this.clearButton.addEventListener("click", () => this.#clear());
  }

  get values() {
    return { conversation: toStored(this.#turns), question: this.question.value };
  }

  /** The conversation as another tab has it, too. Answers that are being read here stay. */
  set conversation(stored) {
    const requestOf = ({ answers }) => answers[0].request;
    const here = this.#turns.filter((turn) => this.#isRead(requestOf(turn)));
    const turns = isConversation(stored) ? fromStored(stored) : [];
    this.#turns = turns.map((turn) => here.find((each) => requestOf(each) === requestOf(turn)) ?? turn);
    this.#draw();
  }

  /** The settings that a new story starts with. */
  get choices() {
    return { system: this.system.value, count: this.count.value };
  }

  set choices({ system = EDITOR, count = "1" }) {
    this.system.value = system;
    this.count.value = count;
  }

  /** Continue reading answers that weren't finished when the page was closed. */
  resume() {
    const left = this.#turns.flatMap(({ answers }) => answers.filter((each) => each.end === undefined));
    for (const [request, answers] of Map.groupBy(left, (each) => each.request))
      if (!this.#isRead(request)) this.#try(() => this.#read(new Generation(this.#listener, request), answers));
  }

  #isRead(request) {
    return [...this.#running].some((each) => each.request?.id === request);
  }

  get #listener() {
    const changed = (answer) => this.#shown.get(answer)?.draw();
    return {
      changed,
      ended: (answer) => {
        changed(answer);
        return this.desk.savePage();
      },
      received: (event) => {
        if (event.event === "progress" && event.evaluated + event.cached < event.total)
          this.status.textContent = `Reading your story: ${percent.format((event.evaluated + event.cached) / event.total)}`;
        if (event.event === "stream") this.status.textContent = "Answering …";
        if (event.event === "error" && event.index === undefined) this.status.textContent = event.error.message;
      },
      stateChanged: () => {},
    };
  }

  /** Run an action. Errors are shown in the panel, which may cover the page; a missing API key is asked for on the page. */
  async #try(action) {
    try {
      await action();
    } catch (error) {
      this.status.textContent = error.message;
      if (error.status === 401) showError(error);
    }
  }

  async #ask() {
    const question = this.question.value;
    if (!question.trim()) return void (this.status.textContent = "Write a question.");
    if (!this.count.reportValidity()) return;
    const n = this.count.valueAsNumber || 1;
    this.#isAsking = true;
    this.#drawButtons();
    try {
      const { prompt, seen } = await this.#prompt(question, n);
      const generation = new Generation(this.#listener);
      const request = await generation.ask({ prompt, n, max_tokens: MOST_TOKENS });
      const answers = Array.from({ length: n }, (_, index) => ({ request, index, after: 0, pieces: [] }));
      this.#turns.push({ question, answers, chosen: 0, seen });
      if (this.question.value.startsWith(question)) this.question.setRangeText("", 0, question.length); // keeps what was typed since
      this.#isAsking = false;
      this.#draw();
      this.list.lastElementChild.scrollIntoView({ block: "start" });
      this.desk.savePage(); // to find it after a reload
      await this.#read(generation, answers);
    } finally {
      this.#isAsking = false;
      this.#drawButtons();
    }
  }

  async #prompt(question, n) {
    const { context, story } = this.desk;
    const fields = { n, max_tokens: MOST_TOKENS };
    const turns = this.#turns.filter(({ answers }) => answers.every(({ end }) => end !== undefined));
    const said = (left) => (text) =>
      applyTemplate(messages({ system: this.system.value, story: text, turns: turns.slice(left), question }));
    let left = 0; // dropped turns, half at a time, so that most prompts start the same
    const isLong = async () => (await tokenize(await said(left)(""))).length > context.room(fields) / 2;
    while (left < turns.length && (await isLong())) left += Math.ceil((turns.length - left) / 2);
    const { prompt, from } = await context.within(story.value, said(left), fields);
    const [all, out] = [story.value, story.value.slice(0, from)].map(words);
    const much = from ? `the last ${numbers.format(all - out)} of ${plural(all, "word")}` : `all ${plural(all, "word")}`;
    const seen = `The editor saw ${all ? `${much} of your story` : "no story"}${left ? `, without the first ${plural(left, "question")}` : ""}.`;
    return { prompt, seen };
  }

  async #read(generation, answers) {
    this.#running.add(generation);
    this.#drawButtons();
    try {
      await generation.read(answers);
    } finally {
      this.#running.delete(generation);
      this.#drawButtons();
      this.desk.savePage();
    }
    if (generation.done) this.status.textContent = generation.isStopped ? "Stopped." : `Done: ${plural(answers.length, "answer")}.`;
  }

  async #clear() {
    if (!confirm("Clear this conversation? Text that you inserted stays in your story.")) return;
    await this.#try(() => Promise.all([...this.#running].map((each) => each.stop())));
    this.#turns = [];
    this.#draw();
    this.status.textContent = "";
    this.desk.savePage();
  }

  #draw() {
    this.#shown.clear();
    this.list.replaceChildren(...this.#turns.flatMap((turn) => this.#rows(turn)));
    this.#drawChosen();
    this.#drawButtons();
  }

  #rows({ question, answers, seen }) {
    const asked = create("li", { className: "question" }, question, ...(seen ? [create("small", { textContent: seen })] : []));
    const rows = answers.map((answer) => {
      const shown = new AnswerView(answer, this.#actions);
      this.#shown.set(answer, shown);
      shown.choose.hidden = answers.length === 1;
      shown.draw();
      return shown.element;
    });
    return [asked, ...rows];
  }

  #drawChosen() {
    for (const { answers, chosen } of this.#turns)
      for (const answer of answers) this.#shown.get(answer).choose.ariaPressed = String(answer.index === chosen);
  }

  #drawButtons() {
    const hadKeyboard = [this.askButton, this.stopButton, this.clearButton].includes(document.activeElement);
    this.askButton.disabled = this.#isAsking || this.#running.size > 0;
    this.stopButton.disabled = !this.#running.size;
    this.clearButton.disabled = !this.#turns.length;
    if (hadKeyboard && isFocusLost()) this.question.focus();
  }
}
