// @ts-check
// Finding a setting: by its name, by what the API calls it, and by what is said of it.

// Whether a text has all of these words, or their beginnings, in any order. Pure.
export function hasWords(text, words) {
  const lower = text.toLowerCase();
  return words.every((word) => lower.includes(word));
}

export const wordsOf = (query) => query.toLowerCase().split(/\s+/).filter(Boolean);

// What is said of a setting, and what its group is called; not what can be chosen.
const said = (row) =>
  [row.closest("details")?.querySelector("summary"), ...row.querySelectorAll("label, .hint")].map((each) => each?.textContent ?? "").join(" ");

// Shows only the settings that have all words of the box, in groups that are open then. Without a word, all groups are closed.
export function listenToSettingSearch(panel) {
  const [box, told] = ["#find-setting", "#found-settings"].map((each) => panel.querySelector(each));
  const rows = [...panel.querySelectorAll(".setting")];
  const groups = [...panel.querySelectorAll("details")];
  const find = () => {
    const words = wordsOf(box.value);
    for (const row of rows) row.hidden = !hasWords(said(row), words);
    for (const group of groups) {
      group.hidden = !group.querySelector(".setting:not([hidden])");
      group.open = words.length > 0 && !group.hidden;
    }
    const count = rows.filter((row) => !row.hidden).length;
    told.textContent = !words.length ? "" : count ? `${count} of ${rows.length} settings` : "No settings found.";
  };
  box.addEventListener("input", find);
  panel.addEventListener("close", () => {
    if (!box.value) return;
    box.value = "";
    find();
  });
}
