// @ts-check
// Titles of stories and of places in them.

import { textOf } from "./tree.js";

const TITLE_LENGTH = 50;

// The beginning of a text in one line: whole words where there are some, and a heading without its sign.
export const shorten = (text, length) => {
  const words = text
    .trim()
    .replace(/^#+ +/, "")
    .replace(/\s+/g, " ");
  if (words.length <= length) return words || "(blank)";
  return `${words.slice(0, length + 1).replace(/\s+\S*$/, "").slice(0, length)}…`;
};

// What a place in a text is called: by its text, or by what is rewritten or stands behind there.
export function nodeTitle(node, length) {
  if (node.passage) return `Rewrite: ${shorten(node.passage, length)}`;
  if (!textOf(node) && node.behind) return `Before: ${shorten(node.behind, length)}`;
  return shorten(textOf(node), length);
}

// What a story that begins with this node is called.
export function suggestTitle(node) {
  const text = (textOf(node) || node.passage || node.behind || "").trim();
  const words = (/^#+ +(.*)/.exec(text)?.[1] ?? text).replace(/\s+/g, " ");
  return words.length > TITLE_LENGTH ? words.slice(0, TITLE_LENGTH).replace(/ \S*$/, "") : words;
}

// The title of a story, for people.
export const storyTitle = (story) => story.title || "(no title)";
