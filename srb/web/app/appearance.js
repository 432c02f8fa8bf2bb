// @ts-check
// Appearance on this device: text size and line width, and the focus mode, which shows only the text.

import { find, findAll } from "../lib/dom.js";
import { loadLocal, saveLocal } from "../lib/local_storage.js";

const KEY = "srb-looks";
/** @param {HTMLInputElement} slider */
const outputOf = (slider) => /** @type {HTMLOutputElement} */ (slider.previousElementSibling);

const WIDEST = 54 / 65; // width of a character, in widths of a zero: see --measure

/** Connect the sliders of the settings with the styles of the page. */
export function listenToAppearance() {
  const [size, width] = [find("#text-size"), find("#line-width")];
  const draw = () => {
    const { style } = document.documentElement;
    style.setProperty("--size", String(size.valueAsNumber / 100));
    style.setProperty("--measure", `${(width.valueAsNumber * WIDEST).toFixed(1)}ch`);
    outputOf(size).value = `${size.value} %`;
    outputOf(width).value = `${width.value} characters`;
  };
  const values = loadLocal(KEY);
  size.value = values.size ?? size.defaultValue;
  width.value = values.width ?? width.defaultValue;
  draw();
  for (const each of [size, width])
    each.addEventListener("input", () => {
      draw();
      saveLocal(KEY, { size: size.value, width: width.value });
    });
}

/** Escape leaves the focus mode, and so does Ctrl-Enter, so that its alternatives can be seen. */
export function listenToFocusMode(/** @type {import("../desk/manuscript.js").Manuscript} */ story) {
  const button = find("#focus");
  const { classList } = document.body;
  const move = (isIn) => {
    for (const each of isIn ? findAll("dialog[open]") : []) each.close();
    classList.toggle("focused", isIn);
    button.textContent = isIn ? "Show all" : "Focus";
    story.reveal(story.selection[1], "center");
    story.resume();
  };
  button.addEventListener("click", () => move(!classList.contains("focused")));
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || !classList.contains("focused")) return;
    const isGenerate = event.key === "Enter" && (event.ctrlKey || event.metaKey);
    if (isGenerate || (event.key === "Escape" && !event.isComposing)) move(false);
    if (event.key === "Escape") event.preventDefault();
  });
}

/** The bar folds again when one of its buttons is pressed. */
export function listenToFolding() {
  const [button, bar] = [find("#more-tools"), find("#bar")];
  bar.addEventListener("click", ({ target }) => {
    const pressed = target.closest("button");
    if (!pressed) return;
    const isUnfolded = bar.classList.toggle("unfolded", pressed === button && !bar.classList.contains("unfolded"));
    button.setAttribute("aria-expanded", String(isUnfolded));
    button.textContent = isUnfolded ? "Less" : "More";
  });
}
