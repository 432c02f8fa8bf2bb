// @ts-check
// How the page looks on this device: how large the letters are, and how wide the lines; and the focus, in which there is only the text.

import { findAll } from "../lib/dom.js";
import { loadLocal, saveLocal } from "../lib/local_storage.js";

const KEY = "srb-looks";
const WIDEST = 54 / 65; // of a zero, per letter: see --measure

// The sliders of the settings, with what they change on the page.
export function listenToAppearance(size, width) {
  const draw = () => {
    const { style } = document.documentElement;
    style.setProperty("--size", String(size.value / 100));
    style.setProperty("--measure", `${(width.value * WIDEST).toFixed(1)}ch`);
    size.previousElementSibling.value = `${size.value} %`;
    width.previousElementSibling.value = `${width.value} characters`;
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

// The button leads into the focus and out of it; so does Escape, and Ctrl-Enter, whose alternatives are to be seen.
export function listenToFocusMode(button, story) {
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
