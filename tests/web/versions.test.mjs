// Versions of a text and of a passage: snapshots.js, rewriter.js.

import assert from "node:assert/strict";
import { test } from "node:test";
import { lengthOf, promptOf, selected } from "../../srb/web/desk/rewriter.js";
import { comparison } from "../../srb/web/desk/snapshots.js";

test("two versions are compared word by word, with some text around each change", () => {
  const said = (before, after) => comparison(before, after).map(({ tag, text }) => (tag === "del" ? `-${text}-` : tag === "ins" ? `+${text}+` : text)).join("");
  assert.equal(said("He left the house.", "He left the old house at dawn."), "He left the +old +house+ at dawn+.");
  assert.equal(said("He left.", "He left."), "");
  assert.equal(said("", "He left."), "+He left.+");
  const [far] = [" It rained.".repeat(50)];
  const shown = said(`One.${far} Two.`, `Ada.${far} Tom.`);
  assert.match(shown, /^-One-\+Ada\+\. It rained\..+ … .+\. -Two-\+Tom\+\.$/);
  assert.ok(shown.length < 300);
});

test("a passage is selected without the spaces around it", () => {
  assert.deepEqual(selected({ value: "One. Two. Three", selection: [4, 10] }), [5, 9]);
  assert(!selected({ value: "One. Two", selection: [4, 5] }));
  assert(!selected({ value: "One. Two", selection: [4, 4] }));
});

test("the model sees the passage in its story, as far as it fits", async () => {
  globalThis.sessionStorage = { getItem: () => null };
  globalThis.fetch = async (_path, { body }) => Response.json({ prompt: JSON.parse(body).messages[0].content });
  const context = { letters: () => 200, within: async (text, make) => ({ prompt: await make(`Memory. ${text}`) }) };
  const taken = { before: "x".repeat(500) + "Before. ", passage: "He left.", behind: " Behind." + "y".repeat(5000) };
  const asked = await promptOf(taken, "Shorter.", context, {});
  assert(asked.includes("Memory. xxx"));
  assert(asked.includes("Before. He left. Behind.y"));
  assert(asked.includes("\n\nHe left.\n\nShorter. Answer"));
  assert(asked.length < 800);
  assert(lengthOf("He left.") < 80);
});
