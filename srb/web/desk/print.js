// @ts-check
// Printing: the manuscript alone, with its title and a page for each chapter. What is printed is made for the time of
// printing, since a text box can't be divided into pages.

import { create, find } from "../lib/dom.js";
import { runsOf } from "../story/text_file.js";

const SCENE_BREAK = /^[ \t]*([*_-])[ \t]*(?:\1[ \t]*){2,}$/;

const inline = (line) =>
  runsOf(line).map(({ text, bold, italic }) => {
    const words = italic ? create("em", { textContent: text }) : text;
    return bold ? create("strong", {}, words) : words;
  });

function elementsOf(/** @type {string} */ text) {
  const elements = [];
  let isOpen = false; // whether the next line belongs to the last paragraph
  for (const line of text.split("\n")) {
    const [, signs, heading] = /^(#{1,6}) +(\S.*)$/.exec(line) ?? [];
    const isParagraph = Boolean(line.trim()) && !heading && !SCENE_BREAK.test(line);
    if (heading) elements.push(create(signs.length < 3 ? "h2" : "h3", {}, ...inline(heading)));
    else if (isParagraph && isOpen) elements.at(-1).append(create("br", {}), ...inline(line));
    else if (isParagraph) elements.push(create("p", { dir: "auto" }, ...inline(line)));
    else if (line.trim()) elements.push(create("p", { className: "break", textContent: "* * *" }));
    isOpen = isParagraph;
  }
  return elements;
}

/**
 * Print the manuscript in place of the page.
 * @param {import("./manuscript.js").Manuscript} story
 * @param {() => string} title
 */
export function printManuscript(story, title) {
  const remove = () => find("#printed")?.remove();
  addEventListener("beforeprint", () => {
    const heading = title() ? [create("h1", { textContent: title() })] : [];
    remove();
    document.body.append(create("article", { id: "printed" }, ...heading, ...elementsOf(story.value)));
  });
  addEventListener("afterprint", remove);
}
