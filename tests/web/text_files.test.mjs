// Text files, text_file.js, and formatted text, rich_text.js.

import assert from "node:assert/strict";
import { test } from "node:test";
import { markdownOf } from "../../srb/web/story/rich_text.js";
import { endingOf, fileName, runsOf, telling } from "../../srb/web/story/text_file.js";

test("a file has the story's title as its name", () => {
  const names = ["The boat", "a/b: \"c\"?", " .. ", "", "é".repeat(300), `${"x".repeat(99)}😀y`, "x\n\ty"].map((title) => fileName(title, "epub"));
  assert.deepEqual(names, ["The boat.epub", "a b c.epub", "story.epub", "story.epub", `${"é".repeat(100)}.epub`, `${"x".repeat(99)}😀.epub`, "x y.epub"]);
});

test("a preview has the lines that show an encoding", () => {
  assert.equal(telling("One\nZwölf\n\nThree\n“Four”"), "Zwölf\n“Four”");
});

test("a file that can't be imported is refused with what to do", () => {
  const kinds = ["txt", "docx", "json"];
  const refusal = (name, size = 1) => {
    try {
      return endingOf({ name, size }, kinds);
    } catch (error) {
      return error.message;
    }
  };
  assert.equal(refusal("a.b.DOCX", 32 * 2 ** 20), "docx");
  assert.match(refusal("a.odt"), /^a\.odt can't be imported; the page reads txt, docx, json\. Save it as/);
  assert.match(refusal("docx"), /^docx can't be imported/);
  assert.match(refusal("a.txt", 200 * 2 ** 20), /^a\.txt has 200 MiB, and a file to import at most 32\. Save it without/);
  assert.equal(refusal("a.json", 200 * 2 ** 20), "json");
});

test("runs have no signs of Markdown, and all other characters", () => {
  const plainText = (line) => runsOf(line).map((run) => run.text).join("");
  assert.equal(plainText("**a** *b* ***c*** __d__ _e_ *f **g** h*"), "a b c d e f g h");
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

test("what Word, Google Docs and web pages add is read", () => {
  const comment = { nodeType: 8, nodeName: "#comment", textContent: "StartFragment", childNodes: [] };
  const sign = (words) => ({ ...styled("mso-list:Ignore", el("SPAN", words)), textContent: words });
  const item = (words) => el("LI", el("P", words));
  const body = el("BODY",
    comment, el("P", "a ", el("B", "b")),
    el("P", sign("·  "), "bullet"), el("P", sign("1.  "), "number"),
    el("OL", item("one"), item("two"), el("UL", item("nested"))),
    el("TABLE", el("TR", el("TH", "x"), el("TH", "y")), el("TR", el("TD", "1"), el("TD", "2"))),
    comment,
  );
  assert.equal(markdownOf(body), "a **b**\n\n- bullet\n1. number\n1. one\n2. two\n  - nested\n\nx | y\n\n1 | 2");
  assert.equal(markdownOf(el("BODY", el("P", "a"), el("HR"), el("P", "b"))), "a\n\n* * *\n\nb");
});

test("text without formatting is left to the browser", () => {
  assert.equal(markdownOf(el("BODY", el("P", "a"), el("P", "b"))), null);
  assert.equal(markdownOf(el("BODY", styled("font-weight:normal;", el("B", el("SPAN", "Google Docs"))))), null);
  assert.equal(markdownOf(el("BODY", styled("font-weight: 700", el("SPAN", "bold")), " ", el("EM", " "))), "**bold**");
  assert.equal(markdownOf(el("BODY", el("STRONG", "a"), " ", el("STRONG", "b"))), "**a b**");
});
