// Text files, text_file.js, and formatted text, rich_text.js.

import assert from "node:assert/strict";
import { test } from "node:test";
import { markdownOf } from "../../srb/web/story/rich_text.js";
import { decodeText, fileName, plainText } from "../../srb/web/story/text_file.js";

test("a file has the story's title as its name", () => {
  const names = ["The boat", "a/b: \"c\"?", " .. ", "", "é".repeat(300), "x\n\ty"].map((title) => fileName(title, "epub"));
  assert.deepEqual(names, ["The boat.epub", "a b c.epub", "story.epub", "story.epub", `${"é".repeat(100)}.epub`, "x y.epub"]);
});

test("text files of other encodings and line ends are read", () => {
  const bytes = (...values) => new Uint8Array(values).buffer;
  assert.equal(decodeText(new TextEncoder().encode("\ufeffa\r\nb\rü").buffer), "a\nb\nü");
  assert.equal(decodeText(bytes(0x61, 0xfc)), "aü");
  assert.equal(decodeText(bytes(0xff, 0xfe, 0xfc, 0, 10, 0)), "ü\n");
  assert.equal(decodeText(bytes(0xfe, 0xff, 0, 0xfc)), "ü");
});

test("plain text has no signs of Markdown, and all other characters", () => {
  assert.equal(plainText("# One\n\n**a** *b* ***c*** __d__ _e_ *f **g** h*"), "One\n\na b c d e f g h");
  for (const text of ["2 * 3 * 4", "a*b*c", "snake_case_name", "* * *", "#tag", "- x", "*open", "** a **"]) assert.equal(plainText(text), text);
  assert.equal(plainText("\\*no\\* C:\\new"), "*no* C:\\new");
});

const text = (textContent) => ({ nodeType: 3, textContent });
const el = (nodeName, ...children) => ({ nodeType: 1, nodeName, getAttribute: () => null, childNodes: children.map((each) => (typeof each === "string" ? text(each) : each)) });
const styled = (css, node) => ({ ...node, getAttribute: () => css });

test("bold, italics, headings, quotes and scene breaks become Markdown", () => {
  const body = el("BODY",
    el("H1", el("B", "The\n boat")),
    el("P", "She ", el("I", "left "), el("B", "now", el("I", "!")), ".", el("BR"), "Then ", styled("color: red; font-style: italic", el("SPAN", "he"))),
    el("HR"),
    el("BLOCKQUOTE", el("P", "A letter"), el("P", "of two")),
    el("UL", el("LI", "one"), el("LI", "two")),
    el("STYLE", "p {}"),
  );
  const expected = "# The boat\n\nShe *left* **now*!***.\nThen *he*\n\n* * *\n\n> A letter\n\n> of two\n\n- one\n- two";
  assert.equal(markdownOf(body), expected);
});

test("text without formatting is left to the browser", () => {
  assert.equal(markdownOf(el("BODY", el("P", "a"), el("P", "b"))), null);
  assert.equal(markdownOf(el("BODY", styled("font-weight:normal;", el("B", el("SPAN", "Google Docs"))))), null);
  assert.equal(markdownOf(el("BODY", styled("font-weight: 700", el("SPAN", "bold")), " ", el("EM", " "))), "**bold**");
  assert.equal(markdownOf(el("BODY", el("STRONG", "a"), " ", el("STRONG", "b"))), "**a b**");
});
