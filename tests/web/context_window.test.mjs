// What the model sees of a text, with a server that makes a token of each character.

import assert from "node:assert/strict";
import { test } from "node:test";

import { ContextWindow } from "../../srb/web/desk/context_window.js";

const EMPTY = { values: { memory: "", note: "", depth: 3, lore: [] } };

test("a prompt that failed without the server can be made once the server is back", async () => {
  let isDown = true;
  globalThis.sessionStorage = { getItem: () => null };
  globalThis.fetch = async (_, { body }) => {
    if (isDown) throw new TypeError("no network");
    return new Response(JSON.stringify({ tokens: Array.from(JSON.parse(body).prompt, (letter) => letter.codePointAt(0)) }));
  };
  const context = new ContextWindow(EMPTY, 100);
  await assert.rejects(context.compose("Once", {}), /can't be reached/);
  isDown = false;
  const { parts } = await context.compose("Once", {});
  assert.deepEqual(parts.map(({ text, tokens }) => [text, tokens]), [["Once", 4]]);
});
