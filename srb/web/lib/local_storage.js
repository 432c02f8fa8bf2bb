// @ts-check
// Small values that this browser stores for all stories: appearance, styles, the day's word count.

/**
 * Load a value, or the default if there is none or the browser stores nothing.
 * @param {string} name
 * @param {any} [other]
 * @returns {any}
 */
export function loadLocal(name, other = {}) {
  try {
    return JSON.parse(localStorage.getItem(name) ?? "null") ?? other;
  } catch {
    return other;
  }
}

/**
 * Store a value; undefined removes it.
 * @returns {Error | null} the error if the browser stores nothing
 */
export function saveLocal(name, value) {
  try {
    if (value === undefined) localStorage.removeItem(name);
    else localStorage.setItem(name, JSON.stringify(value));
  } catch (error) {
    return error;
  }
  return null;
}

/** List the names of values that begin like this. */
export function localNames(start) {
  try {
    return Object.keys(localStorage).filter((name) => name.startsWith(start));
  } catch {
    return [];
  }
}
