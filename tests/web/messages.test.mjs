// Errors that are over: lib/messages.js.

import assert from "node:assert/strict";
import { afterEach, beforeEach, describe, test } from "node:test";
import { ApiError } from "../../srb/web/lib/api.js";
import { safely, saveMessages, showError } from "../../srb/web/lib/messages.js";

let elements, answer, others;

const find = (selector) => (elements[selector] ??= { textContent: "", hidden: true });

/** Show an error, and return whether it is in sight after some looks at the server. */
async function isShown(context, error, looks = 3) {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  showError(error);
  for (let look = 0; look < looks; look++) {
    context.mock.timers.tick(2000);
    await new Promise(setImmediate);
  }
  return !find("#error").hidden;
}

describe("errors that are over", () => {
  beforeEach(() => {
    others = { document: globalThis.document, fetch: globalThis.fetch }; // of other tests in this process
    elements = {};
    globalThis.document = { querySelector: find, body: { dataset: { ready: "true" } } };
    globalThis.fetch = async () => answer();
  });

  afterEach(() => Object.assign(globalThis, others));

  test("an error goes when the server is back", async (context) => {
    answer = () => Promise.reject(new TypeError("no network"));
    assert.equal(await isShown(context, new ApiError("The server can't be reached.")), true);
    answer = () => Response.json({ status: "ok", history: "ok" });
    context.mock.timers.tick(2000);
    await new Promise(setImmediate);
    assert.equal(find("#error").hidden, true);
    assert.equal(find("#status").textContent, "The server is back. Try again.");
  });

  test("while the server is loading, or its history can't be used, the error stays", async (context) => {
    for (const body of [{ error: { message: "loading" } }, { status: "ok", history: "the disk is full" }]) {
      answer = () => Response.json(body);
      assert.equal(await isShown(context, new ApiError("not now", 503)), true);
      context.mock.timers.reset();
    }
  });

  test("an error about what was typed stays", async (context) => {
    answer = () => Response.json({ status: "ok" });
    assert.equal(await isShown(context, new ApiError("n must be from 1 to 32", 400)), true);
    context.mock.timers.reset();
    assert.equal(await isShown(context, new Error("Write how the story begins.")), true);
  });

  test("what isn't saved is said until it is saved, whatever is pressed meanwhile", async () => {
    const said = () => (find("#error").hidden ? "" : find("#error-text").textContent);
    const { failed, recovered } = saveMessages("What you wrote last");
    for (const tries of ["the first", "the second"]) failed(new Error(tries));
    await safely(() => {})();
    assert.match(said(), /^What you wrote last isn't saved yet\..* Reason: the second$/);
    await safely(() => Promise.reject(new Error("n must be from 1 to 32")))();
    assert.equal(said(), "n must be from 1 to 32");
    await safely(() => {})();
    assert.match(said(), /^What you wrote last/);
    await safely(() => Promise.reject(new Error("n must be from 1 to 32")))();
    recovered();
    assert.equal(said(), "n must be from 1 to 32");
    await safely(() => {})();
    assert.equal(said(), "");
  });
});
