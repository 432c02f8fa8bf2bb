// @ts-check
// Messages to the writer: the status line and errors.

import { ApiError, health } from "./api.js";
import { find } from "./dom.js";

export const numbers = new Intl.NumberFormat();
export const percent = new Intl.NumberFormat(undefined, { style: "percent" });
export const when = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

/** Format a count: "1 word", "1,200 words". */
export const plural = (count, name) => `${numbers.format(count)} ${name}${count === 1 ? "" : "s"}`;

/** @param {string} text */
export function showStatus(text) {
  find("#status").textContent = text;
}

const LOOK = 2000; // milliseconds between two looks whether the server is back

const DOWN = [undefined, 502, 503, 504]; // the statuses of a server that can't be reached or used now

let shown = null; // the error in sight
const lasting = new Set(); // errors that stay true until they are hidden by name
let titles = {}; // by field

/** Name fields in error messages as the page names them. */
export function nameFields(byField) {
  titles = byField;
}

/** Show an error. If the server requires a key, ask for it. A lasting one stays true when a button is pressed. */
export function showError(error, { isLasting = false } = {}) {
  if (isLasting) lasting.add(error);
  shown = error;
  if (error.status === 401) find("#key").hidden = false;
  const title = titles[error.param];
  find("#error-text").textContent = title ? `${title}: ${error.message}` : error.message;
  find("#error").hidden = false;
  if (error instanceof ApiError && DOWN.includes(error.status)) setTimeout(() => hideWhenBack(error), LOOK);
}

/** Hide an error when the server that caused it can be used again. */
async function hideWhenBack(error) {
  if (error !== shown || find("#error").hidden) return;
  const { error: reason, history } = await health().catch((fault) => ({ error: fault, history: null }));
  if (reason || (history && history !== "ok")) return void setTimeout(() => hideWhenBack(error), LOOK);
  if (!document.body.dataset.ready && !error.back) return location.reload(); // the page couldn't begin
  if (error !== shown) return;
  hideError(error);
  showStatus(error.back ?? "The server is back. Try again.");
}

/** Hide this error, or the current one. Another one that is still true is shown again. */
export function hideError(error = shown) {
  lasting.delete(error);
  if (error !== shown) return;
  const [other] = [...lasting].slice(-1);
  if (other) showError(other);
  else find("#error").hidden = true;
}

/** Return the messages of a `SaveQueue`. `where` is given if it is saved in this browser already. */
export function saveMessages(what, where) {
  let said;
  const failed = ({ message, status, isCopy }) => {
    if (isCopy && said?.isCopy) return; // once is enough
    const advice = where ? "" : "; export all versions to be safe";
    lasting.delete(said);
    const unsaved = `${what} isn't saved ${where ? `${where} ` : ""}yet. The page keeps trying${advice}. Reason: ${message}`;
    said = Object.assign(new Error(isCopy ? `Your story is on the server, but this browser keeps no copy of it. Reason: ${message}` : unsaved), { status, isCopy });
    showError(said, { isLasting: true });
  };
  const recovered = () => {
    hideError(said);
    said = undefined;
    showStatus("Saved.");
  };
  return { failed, recovered };
}

/**
 * Wrap an action of a button: errors are shown on the page.
 * @template {any[]} T
 * @param {(...args: T) => any} action
 */
export const safely =
  (action) =>
  async (/** @type {T} */ ...args) => {
    if (!lasting.has(shown)) hideError();
    try {
      await action(...args);
    } catch (error) {
      showError(error);
    }
  };

/** Show how many tokens of a prompt are evaluated. */
export function showProgress({ evaluated, cached, total }) {
  const bar = find("#progress");
  bar.hidden = evaluated + cached >= total || total < 100; // short prompts need no bar
  bar.max = total;
  bar.value = evaluated + cached;
  if (!bar.hidden) showStatus(`Reading your text: ${percent.format((evaluated + cached) / total)}`);
}

export function hideProgress() {
  find("#progress").hidden = true;
}
