// @ts-check
// Directions: a line for each alternative, from the writer or suggested by the model. The model reads it before it
// writes the alternative; no text shows it.

import { applyTemplate, complete } from "../lib/api.js";
import { find, leaveText } from "../lib/dom.js";
import { safely } from "../lib/messages.js";

const LETTERS = 1000; // the most characters of a direction, as on the server

/** A proposed direction: up to eight words. Small models write brackets and numbers otherwise. */
const WORDS = "^\\p{L}[\\p{L}\\p{M}'’-]{0,24}(,? [\\p{L}\\p{N}][\\p{L}\\p{M}\\p{N}'’-]{0,24}){0,7}$";

/** Return the directions in a text: its lines, without empty ones. */
export const linesOf = (/** @type {string} */ text) => text.split("\n").map((line) => line.trim()).filter(Boolean);

export function faultIn(/** @type {string[]} */ lines) {
  if (!lines.length) return "Write one direction per line, or press Suggest.";
  const k = lines.findIndex(({ length }) => length > LETTERS);
  return k < 0 ? "" : `Direction ${k + 1} has ${lines[k].length} characters, and may have ${LETTERS}. Shorten it.`;
}

/**
 * Return a text with directions that the model has proposed, after the writer's own lines. Lines of an earlier proposal
 * are replaced, unless they were changed.
 * @param {string} text
 * @param {string[]} proposal
 * @param {string[]} [earlier]
 */
export function withProposal(text, proposal, earlier = []) {
  const own = linesOf(text).filter((line) => !earlier.includes(line));
  return [...new Set([...own, ...proposal])].join("\n");
}

const question = (story, n) =>
  `This is the end of a story:\n\n${story}\n\nHow could it go on? Propose ${n} very different directions, each in two to eight words. Answer with a JSON list of ${n} strings.`;

/** Return the body of the request for n directions. The schema makes it a list of n texts. */
export function proposing(/** @type {string} */ prompt, /** @type {number} */ n) {
  const items = { type: "string", pattern: WORDS };
  const schema = { type: "array", items, minItems: n, maxItems: n };
  return { prompt, n: 1, max_tokens: 40 * n + 40, temperature: 0.8, json_schema: schema };
}

/** Return the directions in the model's answer, each once. */
export function proposed(/** @type {string} */ answer) {
  try {
    return [...new Set(linesOf(JSON.parse(answer).map((text) => String(text).replaceAll("\n", " ")).join("\n")))];
  } catch {
    throw new Error("The model didn't finish its list. Press Suggest again, or write your own.");
  }
}

export class Directions {
  dialog = find("#directions");
  box = find("textarea", this.dialog);
  proposeButton = find(".propose", this.dialog);
  status = find("[role=status]", this.dialog);
  leaving = new AbortController();
  earlier = /** @type {string[]} */ ([]); // the last proposal

  /** @param {import("./desk.js").Desk} desk */
  constructor(desk) {
    const { dialog } = this;
    const generate = safely((lines) => desk.writing.generate(lines));
    this.desk = desk;
    find("#open-directions").addEventListener("click", ({ currentTarget }) => {
      this.status.textContent = "";
      leaveText(currentTarget);
      dialog.showModal();
    });
    this.proposeButton.addEventListener("click", () => this.#propose());
    find(".lines", dialog).addEventListener("submit", (event) => {
      const lines = linesOf(this.box.value);
      const fault = faultIn(lines);
      if (!fault) return void generate(lines);
      event.preventDefault();
      this.status.textContent = fault;
    });
    dialog.addEventListener("close", () => this.leaving.abort()); // which cancels the request
  }

  async #propose() {
    const { desk } = this;
    const { signal } = (this.leaving = new AbortController());
    const own = linesOf(this.box.value).filter((line) => !this.earlier.includes(line));
    const n = Math.max(1, desk.settings.read().n - own.length);
    this.proposeButton.disabled = true;
    this.status.textContent = "Looking for directions …";
    try {
      const make = (story) => applyTemplate([{ role: "user", content: question(story, n) }]);
      const { max_tokens } = proposing("", n);
      const { prompt } = await desk.context.within(desk.story.parts.before, make, { n: 1, max_tokens });
      const [answer] = await complete(proposing(prompt, n), signal);
      const lines = proposed(answer);
      this.box.value = withProposal(this.box.value, lines, this.earlier); // and what was typed meanwhile
      this.earlier = lines;
      this.status.textContent = `${lines.length < n ? `The model found ${lines.length} instead of ${n}. ` : ""}Change them as you like.`;
      this.box.focus();
    } catch (error) {
      if (error.name !== "AbortError") this.status.textContent = error.message;
    } finally {
      this.proposeButton.disabled = false;
    }
  }
}
