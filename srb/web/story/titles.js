// @ts-check
// Titles of stories and of places in them.

import { textOf } from "./tree.js";

const TITLE_LENGTH = 50;

/** Cut a text, but not within a character. */
const cut = (text, length) => text.slice(0, length).replace(/[\ud800-\udbff]$/, "");

/** Shorten a text to one line: whole words if possible, and a heading without its sign. */
export const shorten = (text, length) => {
  const words = text
    .trim()
    .replace(/^#+ +/, "")
    .replace(/\s+/g, " ");
  if (words.length <= length) return words || "(blank)";
  return `${cut(words.slice(0, length + 1).replace(/\s+\S*$/, ""), length)}…`;
};

/** Return the title of a node: its text, the passage it rewrites, or the text after it. */
export function nodeTitle(node, length) {
  if (node.passage) return `Rewrite: ${shorten(node.passage, length)}`;
  if (!textOf(node) && node.behind) return `Before: ${shorten(node.behind, length)}`;
  return shorten(textOf(node), length);
}

/** Suggest a title for a story that starts with this node. */
export function suggestTitle(node) {
  const text = (textOf(node) || node.passage || node.behind || "").trim();
  const words = (/^#+ +(.*)/.exec(text)?.[1] ?? text).replace(/\s+/g, " ");
  return words.length > TITLE_LENGTH ? cut(words, TITLE_LENGTH).replace(/ \S*$/, "") : words;
}

/** @param {{ title: string }} story */
export const storyTitle = (story) => story.title || "(no title)";
