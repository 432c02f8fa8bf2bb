// @ts-check
// Search settings by title, API name and description.

import { find, findAll } from "../lib/dom.js";

export function hasWords(/** @type {string} */ text, /** @type {string[]} */ words) {
  const lower = text.toLowerCase();
  return words.every((word) => lower.includes(word));
}

export const wordsOf = (query) => query.toLowerCase().split(/\s+/).filter(Boolean);

/** The searchable text of a setting: its group, title and description, but not its options. */
const said = (row) =>
  [row.closest("details")?.querySelector("summary"), ...row.querySelectorAll("label, .hint")].map((each) => each?.textContent ?? "").join(" ");

/** Show only the settings that match the search box, in open groups. With an empty box, all groups are closed. */
export function listenToSettingSearch() {
  const [panel, box, status] = ["#options", "#find-setting", "#found-settings"].map((each) => find(each));
  const rows = findAll(".setting", panel);
  const groups = findAll("details", panel);
  const search = () => {
    const words = wordsOf(box.value);
    for (const row of rows) row.hidden = !hasWords(said(row), words);
    for (const group of groups) {
      group.hidden = !group.querySelector(".setting:not([hidden])");
      group.open = words.length > 0 && !group.hidden;
    }
    const count = rows.filter((row) => !row.hidden).length;
    status.textContent = !words.length ? "" : count ? `${count} of ${rows.length} settings` : "No settings found.";
  };
  box.addEventListener("input", search);
  panel.addEventListener("close", () => {
    if (!box.value) return;
    box.value = "";
    search();
  });
}
