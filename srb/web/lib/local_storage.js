// @ts-check
// Small choices of a writer that this browser keeps for all stories: how the page looks, styles, words of the day.

// What is kept under a name; without that, or where the browser keeps nothing, the other.
export function loadLocal(name, other = {}) {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? other;
  } catch {
    return other;
  }
}

// Keeps something under a name. Returns what went wrong, if the browser keeps nothing.
export function saveLocal(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
  } catch (error) {
    return error;
  }
  return null;
}
