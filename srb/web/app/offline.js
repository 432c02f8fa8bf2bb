// @ts-check
// What this browser keeps, so that the page opens while the server can't be reached.

import { ApiError, health } from "../lib/api.js";
import { loadLocal, saveLocal } from "../lib/local_storage.js";
import { showError } from "../lib/messages.js";

const SERVER = "srb-server";

/** Return the server's state; if it can't be reached, what it was last. */
export async function healthOrLast() {
  try {
    const { model, history, n_ctx, status } = await health();
    saveLocal(SERVER, { model, history, n_ctx });
    return { model, history, n_ctx, status };
  } catch (error) {
    const last = loadLocal(SERVER, null);
    if (!last) throw error;
    const text = "The server can't be reached. What you type is stored in this browser, and sent to the server when it is back.";
    showError(Object.assign(new ApiError(text), { back: "The server is back." }));
    return last;
  }
}

/** Have a service worker keep the files of this page. There is none without TLS, but for localhost. */
export async function keepPage() {
  const { serviceWorker } = navigator;
  if (!serviceWorker) return;
  const path = "web/app/worker.js";
  const policy = /** @type {any} */ (globalThis).trustedTypes?.createPolicy("srb", { createScriptURL: () => path });
  await serviceWorker.register(policy?.createScriptURL(path) ?? path, { scope: "./" });
  const { active } = await serviceWorker.ready;
  active?.postMessage(performance.getEntriesByType("resource").map(({ name }) => name));
}
