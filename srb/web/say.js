// What the page says: how things go, and what went wrong, in words.

import { GUIDE, titleOf } from "./guide.js";

const find = (selector) => document.querySelector(selector);

export function tell(text) {
  find("#status").textContent = text;
}

export function complain(error) {
  if (error.status === 401) find("#key").hidden = false;
  find("#error-text").textContent = error.param in GUIDE ? `${titleOf(error.param)}: ${error.message}` : error.message;
  find("#error").hidden = false;
}

export function forgive() {
  find("#error").hidden = true;
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
