// @ts-check
// Requests to the server: the key, errors in words, and server-sent events read from fetch.

const KEY = "srb-api-key";

export class ApiError extends Error {
  // param: the field that is wrong.
  constructor(message, status, param) {
    super(message);
    this.status = status;
    this.param = param;
  }
}

const LONGEST_PAUSE = 10_000; // milliseconds, between two tries to reach the server

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

export const openapi = async () => (await call("openapi.json")).json();

// How the server is, also while it can't take requests.
export const health = async () => (await fetch("health")).json();

// What the server finds in all its texts, as GET /v1/history has it.
export const search = async (query) => (await call(`v1/history?${new URLSearchParams(query)}`)).json();

// What the server answers to a story's route, as an object; null where it says nothing.
export async function stories(path = "", method = "GET", body = undefined) {
  const response = await call(`v1/stories${path}`, { method, body: body && JSON.stringify(body) });
  return response.status === 204 ? null : response.json();
}

// The prompt that the model's chat template makes of a conversation.
export async function applyTemplate(messages) {
  const response = await call("apply-template", { method: "POST", body: JSON.stringify({ messages }) });
  return (await response.json()).prompt;
}

// The token ids of a text, as those of a prompt.
export async function tokenize(prompt) {
  const response = await call("tokenize", { method: "POST", body: JSON.stringify({ prompt }) });
  return (await response.json()).tokens;
}

// The text of some token ids.
export async function detokenize(tokens) {
  const response = await call("detokenize", { method: "POST", body: JSON.stringify({ tokens }) });
  return (await response.json()).content;
}

// How likely each token of a continuation is behind a context, both as ids, with so many of the likeliest at its place.
export async function score(context, continuation, logprobs) {
  const body = { contexts: [context], continuations: [continuation], logprobs, stream: false };
  const { scores: [row] } = await (await call("v1/score", { method: "POST", body: JSON.stringify(body) })).json();
  if (row.error) throw new ApiError(row.error.message);
  return row.logprobs;
}

// Ends a request, or one alternative of it. That it has ended by itself meanwhile is no error. Where the server can't be
// reached, `controller` ends the reading at least.
export async function cancel(id, controller, index) {
  try {
    await call(`v1/completions/${id}${index === undefined ? "" : `/choices/${index}`}`, { method: "DELETE" });
  } catch (error) {
    if (!error.status) controller.abort();
    else if (error.status !== 404) throw error;
  }
}

// Asks for a completion. Returns what `read` reads: its id, and the answer. Throws ApiError when it's refused.
export async function submit(body) {
  const response = await call("v1/completions", { method: "POST", body: JSON.stringify({ ...body, stream: "events" }) });
  return { id: response.headers.get("X-Request-Id"), response };
}

// Has the server explore what may follow a prompt; ends it when `signal` is aborted.
export async function explore(body, onEvent, signal) {
  const response = await call("v1/explore", { method: "POST", body: JSON.stringify(body), signal });
  for await (const { data } of eventsOf(response, signal)) {
    onEvent(data);
    if (data.event === "done") return;
  }
  if (!signal.aborted) throw new ApiError("The connection was lost. Close this, and explore again.");
}

// Reads a request's events behind the one with the id `after`, to the last one. Throws ApiError when there is no such
// request any more, and AbortError when `signal` is aborted. onLost and onBack: see `follow`.
export function read({ id, response }, { onEvent, ...listener }) {
  const hear = (event, place) => {
    onEvent(event, place);
    return event.event === "done";
  };
  return follow(`v1/completions/${id}/events`, { ...listener, response, onEvent: hear });
}

// Reads what is new in a story behind the change `after`, until it's deleted.
export function watch(story, listener) {
  return follow(`v1/stories/${story}/nodes`, listener);
}

// Reads server-sent events behind the one with the id `after`, until onEvent says that this was the last one. Comes
// again when the connection breaks, until the server answers; it calls onLost then, and onBack.
async function follow(path, { response = null, after = 0, onEvent, onLost = () => {}, onBack = () => {}, signal = undefined }) {
  for (let tries = 0; ; tries++) {
    try {
      if (!response) {
        const headers = { Accept: "text/event-stream", "Last-Event-ID": after };
        response = await call(path, { headers, signal });
        onBack();
      }
      if (response.status === 204) return; // it's over, and all was read
    } catch (error) {
      if (!(error instanceof ApiError) || error.status < 500) throw error;
    }
    for await (const event of response ? eventsOf(response, signal) : []) {
      tries = 0;
      after = event.id ?? after;
      if (onEvent(event.data, after)) return;
    }
    signal?.throwIfAborted();
    response = null;
    onLost();
    await pause(Math.min(LONGEST_PAUSE, 500 * 2 ** tries), signal);
  }
}

// The server-sent events of an answer until it ends or breaks off: {id, data}.
async function* eventsOf(response, signal) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const close = () => reader.cancel().catch(() => {});
  signal?.addEventListener("abort", close);
  let rest = "";
  let id;
  try {
    for (;;) {
      const { value, done } = await reader.read().catch(() => ({ done: true }));
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
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

// Until it's time to try again, or until the browser says that it is back in the network. Throws when it's aborted.
function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const end = (settle) => () => {
      clearTimeout(timer);
      removeEventListener("online", online);
      signal?.removeEventListener("abort", abort);
      settle(signal?.reason);
    };
    const [online, abort] = [end(resolve), end(reject)];
    const timer = setTimeout(online, milliseconds);
    addEventListener("online", online);
    signal?.addEventListener("abort", abort);
  });
}

// The token ids of a text, which is evaluated on the way, so that a request that continues it begins at once.
// null when somebody has stopped it.
export async function evaluate(text, { onOpen, onProgress, ...listener }) {
  let ids = [];
  const body = { prompt: text, n: 1, max_tokens: 0, echo: true, return_tokens: true, return_progress: true };
  const onEvent = (event) => {
    if (event.event === "stream") ids.push(...(event.tokens ?? []));
    if (event.event === "progress") onProgress(event);
    if (event.event === "error") throw new ApiError(event.error.message);
    if (event.event === "stop" && event.finish_reason === "abort") ids = null;
  };
  const request = await submit(body);
  onOpen(request.id);
  try {
    await read(request, { onEvent, ...listener });
  } catch (error) {
    if (error.name !== "AbortError") throw error;
    return null;
  }
  return ids;
}
