// @ts-check
// Requests to the server: API key, errors, and server-sent events read with fetch.

const KEY = "srb-api-key";

export class ApiError extends Error {
  /**
   * @param {string} message
   * @param {number} [status]
   * @param {string} [param] the field that is wrong
   */
  constructor(message, status, param) {
    super(message);
    this.status = status;
    this.param = param;
  }
}

const LONGEST_PAUSE = 10_000; // milliseconds between two tries

export const setKey = (key) => sessionStorage.setItem(KEY, key);

async function call(path, options = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = key ? { ...options.headers, "x-api-key": key } : options.headers;
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server can't be reached. Is it running?");
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  throw new ApiError(body.error?.message ?? `The server answered ${response.status}`, response.status, body.error?.param);
}

/** The options of a call with a body of JSON. */
const posting = (body) => ({ method: "POST", body: JSON.stringify(body) });

const ask = async (path, body) => (await call(path, posting(body))).json();

export const openapi = async () => (await call("openapi.json")).json();

/** Return the server's state, also while it accepts no requests. */
export const health = async () => (await fetch("health")).json();

/** Search all texts on the server. */
export const search = async (query) => (await call(`v1/history?${new URLSearchParams(query)}`)).json();

/** @typedef {{ title: string, text: string, left_out: string[], encodings?: string[] }} ImportedDocument */

/** Read a docx, an epub or a txt as Markdown. `encoding` is of a txt; without it the server detects it. */
export const importDocument = async (file, format, encoding = "") =>
  (await call(`v1/documents/import?${new URLSearchParams({ format, encoding })}`, { method: "POST", body: file })).json();

/** Write Markdown as a docx or an epub. */
export const exportDocument = async (body) => (await call("v1/documents/export", posting(body))).blob();

/** Call a route of a story. Resolves to the JSON of the response, or null if it is empty. */
export async function stories(path = "", method = "GET", body = /** @type {any} */ (undefined)) {
  const response = await call(`v1/stories${path}`, { method, body: body && JSON.stringify(body) });
  return response.status === 204 ? null : response.json();
}

/** Apply the model's chat template to messages. Resolves to the prompt. */
export const applyTemplate = async (messages) => (await ask("apply-template", { messages })).prompt;

/** Resolves to the token ids of a prompt. @returns {Promise<number[]>} */
export const tokenize = async (prompt) => (await ask("tokenize", { prompt })).tokens;

export const detokenize = async (tokens) => (await ask("detokenize", { tokens })).content;

/** Return the log-probability of each token given those before it, with this many of the most probable at its place. */
export async function score(context, continuation, logprobs) {
  const { scores: [row] } = await ask("v1/score", { contexts: [context], continuations: [continuation], logprobs, stream: false });
  if (row.error) throw new ApiError(row.error.message);
  return row.logprobs;
}

/**
 * Cancel a request, or one alternative of it. If it has ended, this does nothing. If the server can't be reached,
 * `controller` aborts the reading.
 */
export async function cancel(id, controller, index) {
  try {
    await call(`v1/completions/${id}${index === undefined ? "" : `/choices/${index}`}`, { method: "DELETE" });
  } catch (error) {
    if (!error.status) controller.abort();
    else if (error.status !== 404) throw error;
  }
}

async function post(path, body, signal) {
  const response = await call(path, { ...posting(body), signal });
  return { id: response.headers.get("X-Request-Id") ?? "", response };
}

/** Submit a request. Resolves to it, for `read`. */
export const submit = (body, signal) => post("v1/completions", { ...body, stream: "events" }, signal);

/** Complete a prompt, and return the texts, the best bridge first. Aborting `signal` cancels the request. */
export async function complete(body, signal) {
  const made = /** @type {{ text: string, fit: number }[]} */ ([]);
  const onEvent = (event) => {
    if (event.event === "error") throw new ApiError(event.error.message);
    const each = (made[event.index ?? 0] ??= { text: "", fit: 0 });
    each.text += event.text ?? "";
    each.fit = event.suffix_logprob ?? each.fit;
  };
  const request = await submit(body, signal);
  signal?.addEventListener("abort", () => call(`v1/completions/${request.id}`, { method: "DELETE" }).catch(() => {}));
  await read(request, { onEvent, signal });
  return made.sort((a, b) => b.fit - a.fit).map(({ text }) => text);
}

/** Explore likely continuations of a prompt, until `signal` is aborted. */
export async function explore(body, onNode, signal) {
  const onEvent = (event) => {
    if (event.event === "error") throw new ApiError(event.error.message);
    if (event.event === "node") onNode(event);
  };
  const onLost = () => {
    throw new ApiError("The connection was lost. Close this, and explore again.");
  };
  await read(await post("v1/explore", body, signal), { onEvent, onLost, signal });
}

/**
 * Read a request's events after the id `after`, up to the last one.
 * @param {{ id: string, response?: Response | null }} request
 * @param {Record<string, any>} listener `onEvent(event, id)`, `after`, `signal`, `onLost()`, `onBack()`
 * @throws {ApiError} if the request doesn't exist any more
 */
export function read({ id, response }, { onEvent, ...listener }) {
  const handle = (event, place) => {
    onEvent(event, place);
    return event.event === "done";
  };
  return follow((after) => `v1/completions/${id}/events?starting_after=${after}`, { ...listener, response, onEvent: handle });
}

/** Read the changes of a story after the change `after`, until it is deleted. */
export const watch = (story, listener) => follow((after) => `v1/stories/${story}/nodes?since=${after}`, listener);

/**
 * Read server-sent events after the id `after`, until `onEvent` returns true. If the connection breaks, call
 * `onLost`, reconnect until the server answers, and call `onBack`.
 *
 * They come over a WebSocket, because a browser has only six other connections to a server, for all its tabs. Where a
 * proxy lets no WebSocket through, they take one of these.
 * @param {(after: number) => string} path
 * @param {{ response?: Response | null, after?: number, onEvent: (event: any, id: number) => boolean,
 *   onLost?: () => void, onBack?: () => void, signal?: AbortSignal }} listener with the `response` that submitted a
 *   request, which has its events, too
 */
async function follow(path, { response = null, after = 0, onEvent, onLost = () => {}, onBack = () => {}, signal }) {
  let isRefused = false; // whether the server has answered where no WebSocket opened
  for (let tries = 0; ; tries++) {
    /** @type {ReadableStream<string> | null} */
    let texts = null;
    try {
      const first = response;
      response = null;
      texts = await openSocket(path(after), signal);
      if (texts) first?.body?.cancel();
      else {
        const answer = first ?? (await call(path(after), { headers: { Accept: "text/event-stream" }, signal }));
        if (answer.status === 204) return; // the request has ended, and all was read
        if (!first && !isRefused) {
          answer.body?.cancel(); // the server may just have started
          isRefused = true;
          continue;
        }
        texts = answer.body?.pipeThrough(new TextDecoderStream()) ?? null;
      }
      isRefused = false;
      if (!first) onBack();
    } catch (error) {
      if (!(error instanceof ApiError) || (error.status ?? 500) < 500) throw error;
    }
    for await (const event of texts ? eventsOf(texts, signal) : []) {
      tries = 0;
      after = event.id ?? after;
      if (onEvent(event.data, after)) return;
    }
    signal?.throwIfAborted();
    onLost();
    await pause(Math.min(LONGEST_PAUSE, 500 * 2 ** tries), signal);
  }
}

/**
 * Open a WebSocket. Resolves to what comes over it, or to null if it doesn't open.
 * @param {string} path
 * @param {AbortSignal} [signal]
 * @returns {Promise<ReadableStream<string> | null>}
 */
function openSocket(path, signal) {
  const key = sessionStorage.getItem(KEY);
  const hex = [...new TextEncoder().encode(key ?? "")].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  const socket = new WebSocket(path, key ? ["srb", `srb.key.${hex}`] : []); // it takes no headers
  socket.binaryType = "arraybuffer";
  const { readable, writable } = new TextDecoderStream();
  const writer = writable.getWriter();
  const end = () => writer.close().catch(() => {});
  socket.onmessage = ({ data }) => writer.write(data).catch(() => {});
  socket.onclose = end;
  addEventListener("offline", end);
  signal?.addEventListener("abort", end);
  return new Promise((resolve) => {
    socket.onopen = () => resolve(readable);
    writer.closed.catch(() => {}).then(() => {
      removeEventListener("offline", end);
      signal?.removeEventListener("abort", end);
      socket.close();
      resolve(null);
    });
  });
}

/** Yield the server-sent events of a stream, as {id, data}, until it ends or breaks off. */
async function* eventsOf(texts, signal) {
  const reader = texts.getReader();
  const close = () => reader.cancel().catch(() => {});
  signal?.addEventListener("abort", close);
  let rest = "";
  let id;
  try {
    for (;;) {
      const { value, done } = await reader.read().catch(() => ({ done: true, value: "" }));
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop() ?? "";
      for (const line of lines) {
        if (line.startsWith("id: ")) id = Number(line.slice("id: ".length));
        if (line.startsWith("data: ")) yield { id, data: JSON.parse(line.slice("data: ".length)) };
      }
    }
  } finally {
    signal?.removeEventListener("abort", close);
    close();
  }
}

/** Wait before the next try, or until the browser is online again. Rejects when `signal` is aborted. */
async function pause(milliseconds, signal) {
  const end = new AbortController();
  await new Promise((resolve) => {
    setTimeout(resolve, milliseconds);
    addEventListener("online", resolve, { signal: end.signal });
    signal?.addEventListener("abort", resolve, { signal: end.signal });
  });
  end.abort(); // no listener is left
  signal?.throwIfAborted();
}
