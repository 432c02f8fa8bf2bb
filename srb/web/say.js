// What the page says: how things go, and what went wrong, in words.

import { GUIDE, titleOf } from "./guide.js";

const find = (selector) => document.querySelector(selector);
const numbers = new Intl.NumberFormat();

// A number with what is counted: "1 word", "1,200 words".
export const plural = (count, name) => `${numbers.format(count)} ${name}${count === 1 ? "" : "s"}`;

export function tell(text) {
  find("#status").textContent = text;
}

let shown = null; // what is complained of

export function complain(error) {
  shown = error;
  if (error.status === 401) find("#key").hidden = false;
  find("#error-text").textContent = error.param in GUIDE ? `${titleOf(error.param)}: ${error.message}` : error.message;
  find("#error").hidden = false;
}

// Takes back this complaint, or the one that is there.
export function forgive(error = shown) {
  if (error === shown) find("#error").hidden = true;
}

// What a `Saving` says to the writer.
export function saidOf(what) {
  let said;
  const failed = ({ message, status }) => {
    said = new Error(`${what} isn't kept yet. The page tries again; export the tree to be safe. The reason: ${message}`);
    complain(Object.assign(said, { status }));
  };
  const mended = () => {
    forgive(said);
    tell("Now it is kept.");
  };
  return { failed, mended };
}

// Runs what a button does; what goes wrong is said on the page.
export const safely =
  (action) =>
  async (...args) => {
    forgive();
    try {
      await action(...args);
    } catch (error) {
      complain(error);
    }
  };

// How far prompts are evaluated, in tokens.
export function tellProgress({ evaluated, cached, total }) {
  const bar = find("#progress");
  bar.hidden = evaluated + cached >= total || total < 100; // what is done at once needs no bar
  bar.max = total;
  bar.value = evaluated + cached;
  if (!bar.hidden) tell(`Reading the text: ${evaluated + cached} of ${total} tokens`);
}

export function endProgress() {
  find("#progress").hidden = true;
}
