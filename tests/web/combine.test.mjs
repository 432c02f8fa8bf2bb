// Passages of alternatives, and how they join the text.

import assert from "node:assert";
import { test } from "node:test";

globalThis.matchMedia ??= () => ({ matches: false });
const { joined, passageOf, sentencesOf } = await import("../../srb/web/desk/combine.js");

test("sentences have no space around them", () => {
  const text = ' He slept. “Why,” she said.\n\nNobody knew';
  assert.deepEqual(sentencesOf(text).map(([from, to]) => text.slice(from, to)), ["He slept.", "“Why,” she said.", "Nobody knew"]);
  assert.deepEqual(sentencesOf(" \n"), []);
});

test("a passage comes with the space before it", () => {
  const text = " He slept. She woke.\n\nNobody knew.";
  const at = (part) => [text.indexOf(part), text.indexOf(part) + part.length];
  assert.equal(passageOf(text, ...at("He slept.")), " He slept.");
  assert.equal(passageOf(text, ...at(" She ")), " She");
  assert.equal(passageOf(text, ...at("Nobody knew.")), "\n\nNobody knew.");
  assert.equal(passageOf(text, ...at("ept.")), "ept.");
  assert.equal(passageOf("He slept.", 0, 9, "It rained. "), " He slept.");
});

test("a passage joins the text with one space", () => {
  assert.equal(joined("", " He slept.", ""), "He slept.");
  assert.equal(joined("It rained.", " He slept.", ""), " He slept.");
  assert.equal(joined("It rained. ", " He slept.", "She woke."), "He slept. ");
  assert.equal(joined("It rained.", " He slept.", " She woke."), " He slept.");
  assert.equal(joined("It rained. ", "\n\nHe slept.", ""), "\n\nHe slept.");
  assert.equal(joined("It rained.\n\n", "\n\nHe slept.", ""), "He slept.");
  assert.equal(joined("He s", "lept.", ""), "lept.");
});
