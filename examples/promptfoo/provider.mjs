// @ts-check
/**
 * A promptfoo provider that asks for all repeats of a prompt in one request.
 *
 * promptfoo calls a provider once per repeat. This one sends `n` with the first call, and gives the other calls the
 * remaining alternatives, so that srb evaluates the prompt once.
 */

/**
 * @typedef {object} Config The provider's `config`. All other fields are fields of the request.
 * @property {string} [url] The server's address, without a path.
 * @property {string} [apiKey] The server's key, if it needs one.
 * @property {boolean} [chat] Whether a prompt is sent as a user's message. A JSON list of messages always is a chat.
 * @property {number} [n] How many alternatives to ask for at once, instead of the test's `options.repeat`.
 * @property {number} [seed] The seed of the first alternative. Alternative k has the seed + k.
 */

/**
 * @typedef {object} Context What promptfoo says about a call. Its type is `CallApiContextParams`.
 * @property {Record<string, unknown>} vars The test's variables.
 * @property {{config?: Record<string, unknown>}} prompt The prompt's `config`, which includes the test's `options`.
 * @property {{options?: {repeat?: number}}} [test] The test.
 */

/**
 * @typedef {object} Answer What promptfoo gets for a call. Its type is `ProviderResponse`.
 * @property {unknown} [output] The text, or the tool calls.
 * @property {string} [error] Why there is no output.
 * @property {{total?: number, prompt?: number, completion?: number, numRequests: number}} [tokenUsage] The request's
 *   tokens in its first alternative, and zeros in the others.
 * @property {number[]} [logProbs] With `logprobs`: the log-probability of each token.
 * @property {Record<string, unknown>} [metadata] `seed`, `index` and `finishReason`, and `ignored` if there are any.
 * @property {unknown} [raw] The choice in OpenAI's format.
 */

/** Options of a test that are promptfoo's own. promptfoo adds them to the prompt's `config`. */
const PROMPTFOO_OPTIONS = new Set([
  "disableConversationVar", "disableDefaultAsserts", "disableVarExpansion", "factuality", "postprocess", "prefix",
  "provider", "repeat", "rubricPrompt", "runSerially", "storeOutputAs", "suffix", "transform", "transformVars",
]);
/** What promptfoo adds to the provider's `config`. */
const NOT_FIELDS = new Set(["basePath"]);
/** Variables that promptfoo adds, and that differ in each repeat. */
const PROMPTFOO_VARS = new Set(["__evalId", "__evalStepId", "__repeatIndex"]);

/** One request for n alternatives, which several calls share. */
class Batch {
  #controller = new AbortController();
  #given = 0;
  #waiting = 0;
  /** Whether the request failed, or was aborted. */
  failed = false;

  /**
   * @param {number} n How many alternatives it has.
   * @param {number} seed The seed of the first.
   * @param {(signal: AbortSignal) => Promise<Answer[]>} send Sends the request.
   */
  constructor(n, seed, send) {
    this.n = n;
    this.seed = seed;
    this.answers = send(this.#controller.signal);
    this.answers.catch(() => (this.failed = true));
  }

  /** Whether the next call needs another request. */
  get isOver() {
    return this.failed || this.#given === this.n;
  }

  /**
   * Wait for the next alternative. The request is aborted when all calls that wait for it are.
   *
   * @param {AbortSignal} [signal] The call's signal.
   * @returns {Promise<Answer>} The alternative.
   */
  async next(signal) {
    const index = this.#given++;
    /** @type {(reason?: unknown) => void} */
    let reject = () => {};
    const stop = () => reject(signal?.reason);
    const stopped = new Promise((_, refuse) => (reject = refuse));
    signal?.addEventListener("abort", stop);
    this.#waiting++;
    try {
      return (await Promise.race([this.answers, stopped]))[index];
    } finally {
      this.#waiting--;
      signal?.removeEventListener("abort", stop);
      if (signal?.aborted && !this.#waiting) {
        this.failed = true;
        this.#controller.abort(signal.reason);
      }
    }
  }
}

/** promptfoo makes one of these for each entry of `providers`. */
export default class SrbProvider {
  /** The latest request of each prompt. @type {Map<string, Batch>} */
  #batches = new Map();

  /** @param {{id?: string, label?: string, config?: Config & Record<string, unknown>}} options The entry. */
  constructor(options = {}) {
    this.config = options.config ?? {};
    this.label = options.label;
    this.name = options.id ?? "srb";
  }

  /** @returns {string} The provider's name in promptfoo's results. */
  id() {
    return this.name;
  }

  /**
   * Return the next alternative of a prompt.
   *
   * @param {string} prompt The prompt, with its variables filled in.
   * @param {Context} [context] What promptfoo says about the call.
   * @param {{abortSignal?: AbortSignal}} [options] The call's options.
   * @returns {Promise<Answer>} The alternative, or the error.
   */
  async callApi(prompt, context, options) {
    const signal = options?.abortSignal;
    signal?.throwIfAborted();
    const { url = "http://localhost:9090", apiKey, chat, ...fields } = {
      ...without(NOT_FIELDS, this.config), ...without(PROMPTFOO_OPTIONS, context?.prompt?.config),
    };
    for (const name of ["branches", "best_of"])
      if (name in fields) return { error: `${name} can't be used in config: list one provider for each setting` };
    const n = Number(fields.n ?? context?.test?.options?.repeat ?? 1);
    const messages = messagesOf(prompt, chat === true);
    const body = { ...fields, ...(messages ? { messages } : { prompt }), n, stream: false };
    const address = `${url}/openai/v1/${messages ? "chat/completions" : "completions"}`;

    const key = JSON.stringify([address, body, without(PROMPTFOO_VARS, context?.vars)]);
    let batch = this.#batches.get(key);
    if (!batch || batch.isOver) {
      const seed = batch ? batch.seed + (batch.failed ? 0 : batch.n) : firstSeed(fields.seed);
      batch = new Batch(n, seed, (stop) => send(address, apiKey, { ...body, seed: seed >>> 0 }, stop));
      this.#batches.set(key, batch);
    }
    try {
      return await batch.next(signal);
    } catch (error) {
      signal?.throwIfAborted();
      return error instanceof Refusal ? error.answer : { error: `${address}: ${reason(error)}` };
    }
  }
}

/** The server's answer is an error. */
class Refusal extends Error {
  /** @param {Response} response @param {string} message */
  constructor(response, message) {
    super(message);
    const { status, statusText } = response;
    /** @type {Answer} */
    this.answer = { error: `HTTP ${status}: ${message}`, metadata: { http: { status, statusText } } };
  }
}

/**
 * Send a request, and return its alternatives.
 *
 * @param {string} address
 * @param {string | undefined} apiKey
 * @param {{n: number, seed: number}} body
 * @param {AbortSignal} signal
 * @returns {Promise<Answer[]>} As many as `body.n`.
 */
async function send(address, apiKey, body, signal) {
  const headers = { "content-type": "application/json", ...(apiKey ? { authorization: `Bearer ${apiKey}` } : {}) };
  const response = await fetch(address, { method: "POST", headers, body: JSON.stringify(body), signal });
  const text = await response.text();
  let object;
  try {
    object = JSON.parse(text);
  } catch {
    throw new Refusal(response, `not JSON: ${text.slice(0, 200)}`);
  }
  // An answer that takes long begins with the status 200, even if it becomes an error.
  if (object.error || !response.ok) throw new Refusal(response, object.error?.message ?? text.slice(0, 200));
  const { choices = [], usage = {} } = object;
  if (choices.length !== body.n)
    throw new Refusal(response, `the server sent ${choices.length} of ${body.n} alternatives`);
  const ignored = response.headers.get("x-srb-ignored");
  const used = { total: usage.total_tokens, prompt: usage.prompt_tokens, completion: usage.completion_tokens };
  return choices.map((choice, index) => ({
    ...outputOf(choice),
    tokenUsage: index ? { total: 0, prompt: 0, completion: 0, numRequests: 0 } : { ...used, numRequests: 1 },
    ...(choice.logprobs?.content ? { logProbs: choice.logprobs.content.map((each) => each.logprob) } : {}),
    metadata: {
      seed: (body.seed + index) >>> 0,
      index,
      finishReason: choice.finish_reason,
      ...(choice.message?.reasoning_content ? { reasoning: choice.message.reasoning_content } : {}),
      ...(ignored ? { ignored } : {}),
    },
    raw: choice,
  }));
}

/**
 * Return the text or the tool calls of a choice, or the error of a choice that failed.
 *
 * @param {any} choice A choice in OpenAI's format.
 * @returns {Answer}
 */
function outputOf(choice) {
  if (choice.finish_reason === "error") return { error: choice.error?.message ?? "the alternative failed" };
  if (!choice.message) return { output: choice.text };
  return { output: choice.message.tool_calls?.length ? choice.message.tool_calls : choice.message.content };
}

/**
 * Return the messages of a chat, or undefined if the prompt is a text to continue.
 *
 * @param {string} prompt
 * @param {boolean} chat Whether a text is a user's message.
 */
function messagesOf(prompt, chat) {
  if (prompt.trimStart().startsWith("["))
    try {
      const list = JSON.parse(prompt);
      if (list.length && list.every((each) => each?.role)) return list;
    } catch {
      // It is a text that begins with a bracket.
    }
  return chat ? [{ role: "user", content: prompt }] : undefined;
}

/**
 * Return the seed of a prompt's first alternative: a random one, unless the config has one.
 *
 * @param {unknown} seed
 */
function firstSeed(seed) {
  return seed === undefined || seed === null || Number(seed) === -1 ? crypto.getRandomValues(new Uint32Array(1))[0] : Number(seed);
}

/**
 * Return the entries of an object whose names aren't in a set.
 *
 * @param {Set<string>} names
 * @param {Record<string, any>} [object]
 * @returns {Record<string, any>}
 */
function without(names, object = {}) {
  return Object.fromEntries(Object.entries(object).filter(([name]) => !names.has(name)));
}

/** @param {any} error What `fetch` throws, whose cause says more. */
function reason(error) {
  return [error.message, error.cause?.message ?? error.cause?.code].filter(Boolean).join(": ");
}
