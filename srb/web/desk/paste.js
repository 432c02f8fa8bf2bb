// @ts-check
// Pasting: bold, italics and headings stay, as Markdown.

import { markdownOf } from "../story/rich_text.js";

const self = /** @type {any} */ (globalThis); // TypeScript doesn't know Trusted Types
// Parsing makes a document that runs no scripts and loads nothing; only its words reach the page.
const policy = self.trustedTypes?.createPolicy("pasted", { createHTML: (html) => html }) ?? { createHTML: (html) => html };

/** Return what is pasted with its formatting; nothing for text without formatting. */
export function markdownIn(/** @type {ClipboardEvent} */ event) {
  const html = event.clipboardData?.getData("text/html");
  return html && markdownOf(new DOMParser().parseFromString(policy.createHTML(html), "text/html").body);
}
