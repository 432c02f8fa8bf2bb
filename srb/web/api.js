// Requests to the server: the key, errors in words, and server-sent events read from fetch.

const KEY = "srb-api-key";

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

// The stream has ended before it was done.
export class ConnectionLost extends Error {}

export const setKey = (key) => sessionStorage.setItem(KEY, key);

async function call(path, options = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = key ? { "x-api-key": key } : {};
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server can't be reached. Is it running?");
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  throw new ApiError(body.error?.message ?? `The server answered ${response.status}`, response.status);
}

export const openapi = async () => (await call("openapi.json")).json();
export const health = async () => (await call("health")).json();

// Ends a request, or one alternative of it. That it has ended by itself meanwhile is no error.
export async function cancel(id, index) {
  try {
    await call(`v1/completions/${id}${index === undefined ? "" : `/choices/${index}`}`, { method: "DELETE" });
  } catch (error) {
    if (error.status !== 404) throw error;
  }
}

// Asks for a completion. onOpen gets its id as soon as it is queued, onEvent each event.
// Throws ApiError when it's refused, ConnectionLost when its stream breaks off.
export async function complete(body, { onOpen = () => {}, onEvent }) {
  const response = await call("v1/completions", { method: "POST", body: JSON.stringify({ ...body, stream: "events" }) });
  onOpen(response.headers.get("X-Request-Id"));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let last;
  for (;;) {
    const { value, done } = await reader.read().catch(() => ({ done: true }));
    if (done) break;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines.filter((each) => each.startsWith("data: "))) {
      last = JSON.parse(line.slice("data: ".length));
      onEvent(last);
    }
  }
  if (last?.event !== "done") throw new ConnectionLost("The connection was lost. What had arrived is kept.");
}

// The token ids of a text, which is evaluated on the way, so that a request that continues it begins at once.
// null when somebody has stopped it.
export async function evaluate(text, { onOpen, onProgress }) {
  let ids = [];
  await complete(
    { prompt: text, n: 1, max_tokens: 0, echo: true, return_tokens: true, return_progress: true },
    {
      onOpen,
      onEvent: (event) => {
        if (event.event === "stream") ids = event.tokens ?? [];
        if (event.event === "progress") onProgress(event);
        if (event.event === "error") throw new ApiError(event.error.message);
        if (event.event === "stop" && event.finish_reason === "abort") ids = null;
      },
    },
  );
  return ids;
}
