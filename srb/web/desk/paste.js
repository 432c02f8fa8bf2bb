// @ts-check
// Pasting: bold, italics and headings stay, as Markdown.

import { markdownOf } from "../story/rich_text.js";

const self = /** @type {any} */ (globalThis); // TypeScript doesn't know Trusted Types
// Parsing makes a document that runs no scripts and loads nothing; only its words reach the page.
const policy = self.trustedTypes?.createPolicy("pasted", { createHTML: (html) => html }) ?? { createHTML: (html) => html };

/**
 * Keep the formatting of what is pasted. Text without formatting is left to the browser.
 * @param {HTMLTextAreaElement} box
 */
export function keepFormatting(box) {
  box.addEventListener("paste", (event) => {
    const html = event.clipboardData?.getData("text/html");
    const text = html && markdownOf(new DOMParser().parseFromString(policy.createHTML(html), "text/html").body);
    if (!text) return;
    event.preventDefault();
    box.setRangeText(text, box.selectionStart, box.selectionEnd, "end");
    box.dispatchEvent(new InputEvent("input", { bubbles: true, inputType: "insertFromPaste", data: text }));
  });
}
