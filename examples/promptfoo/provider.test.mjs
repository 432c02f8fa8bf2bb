// node --test
import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import { after, beforeEach, test } from "node:test";
import SrbProvider from "./provider.mjs";

/** @type {any[]} */
let bodies = [];
/** @type {(body: any, response: any) => unknown} */
let answer;
let aborted = 0;
const server = createServer(async (request, response) => {
  let text = "";
  for await (const piece of request) text += piece;
  const body = JSON.parse(text);
  bodies.push({ path: request.url, key: request.headers.authorization, ...body });
  response.on("close", () => (aborted += response.writableEnded ? 0 : 1));
  await answer(body, response);
}).listen(0, "127.0.0.1");
await once(server, "listening");
const url = `http://127.0.0.1:${/** @type {any} */ (server.address()).port}`;
after(() => {
  server.close();
  server.closeAllConnections();
});

/** Send JSON with a status. */
function send(response, object, status = 200, headers = {}) {
  response.writeHead(status, headers).end(JSON.stringify(object));
}

/** Send alternatives that name their seeds. */
function texts({ n, seed, messages }, response) {
  const choices = Array.from({ length: n }, (_, index) => {
    const text = `text of ${seed + index}`;
    return { index, finish_reason: "length", ...(messages ? { message: { content: text } } : { text }) };
  });
  send(response, { choices, usage: { prompt_tokens: 5, completion_tokens: 3 * n, total_tokens: 5 + 3 * n } });
}

beforeEach(() => {
  bodies = [];
  answer = texts;
  aborted = 0;
});

/** What promptfoo passes for one repeat of a test. */
function context(repeatIndex, { repeat = undefined, vars = {}, config = {} } = {}) {
  const own = { __evalId: "e", __evalStepId: `test-${repeatIndex}`, __repeatIndex: repeatIndex };
  return { vars: { ...vars, ...own }, prompt: { config }, test: { options: { repeat } } };
}

/** Call a provider `count` times at once. */
function call(provider, count, options = {}, prompt = "Once upon a time,") {
  return Promise.all(Array.from({ length: count }, (_, k) => provider.callApi(prompt, context(k, options))));
}

test("calls at the same time share one request", async () => {
  const provider = new SrbProvider({ config: { url, seed: 7, max_tokens: 3 } });
  const answers = await call(provider, 4, { repeat: 4 });
  assert.deepEqual(answers.map(({ output }) => output), [7, 8, 9, 10].map((seed) => `text of ${seed}`));
  assert.deepEqual(answers.map(({ metadata }) => metadata.seed), [7, 8, 9, 10]);
  assert.deepEqual(bodies, [{
    path: "/openai/v1/completions", key: undefined, prompt: "Once upon a time,", n: 4, seed: 7, max_tokens: 3, stream: false,
  }]);
});

test("calls one after the other share one request", async () => {
  const provider = new SrbProvider({ config: { url, n: 3 } });
  const outputs = [];
  for (let k = 0; k < 3; k++) outputs.push((await provider.callApi("A", context(k))).output);
  assert.equal(new Set(outputs).size, 3);
  assert.equal(bodies.length, 1);
});

test("more repeats than n are another request, with the next seeds", async () => {
  const answers = await call(new SrbProvider({ config: { url, n: 2, seed: 2 ** 32 - 1 } }), 4);
  assert.deepEqual(answers.map(({ metadata }) => metadata.seed), [2 ** 32 - 1, 0, 1, 2]);
  assert.deepEqual(bodies.map(({ seed }) => seed), [2 ** 32 - 1, 1]);
});

test("without a seed each prompt has a random one", async () => {
  const provider = new SrbProvider({ config: { url, seed: -1 } });
  const seeds = [];
  for (const prompt of ["A", "B", "C"]) seeds.push((await provider.callApi(prompt, context(0))).metadata.seed);
  assert.equal(new Set(seeds).size, 3);
  assert.deepEqual(bodies.map(({ seed }) => seed), seeds);
});

test("other prompts, variables and settings are other requests", async () => {
  const provider = new SrbProvider({ config: { url, n: 2 } });
  await call(provider, 2, {}, "A");
  await call(provider, 2, {}, "B");
  await call(provider, 2, { vars: { style: "dry" } }, "A");
  await call(provider, 2, { config: { temperature: 0 } }, "A");
  assert.deepEqual(bodies.map(({ prompt, n, temperature }) => [prompt, n, temperature]),
    [["A", 2, undefined], ["B", 2, undefined], ["A", 2, undefined], ["A", 2, 0]]);
});

test("promptfoo's own options aren't sent", async () => {
  const config = { suffix: "!", transform: "output", provider: { id: "x" }, repeat: 9, top_k: 4 };
  await new SrbProvider({ config: { url, basePath: "/x" } }).callApi("A", context(0, { config }));
  assert.deepEqual(Object.keys(bodies[0]).sort(), ["key", "n", "path", "prompt", "seed", "stream", "top_k"]);
});

test("tokens are counted once", async () => {
  const answers = await call(new SrbProvider({ config: { url, n: 3 } }), 3);
  assert.deepEqual(answers.map(({ tokenUsage }) => tokenUsage), [
    { total: 14, prompt: 5, completion: 9, numRequests: 1 },
    { total: 0, prompt: 0, completion: 0, numRequests: 0 },
    { total: 0, prompt: 0, completion: 0, numRequests: 0 },
  ]);
});

test("a list of messages, and a prompt with chat, are chats", async () => {
  const provider = new SrbProvider({ config: { url, apiKey: "k" } });
  const list = [{ role: "system", content: "S" }, { role: "user", content: "U" }];
  assert.match((await provider.callApi(JSON.stringify(list), context(0))).output, /^text of/);
  await provider.callApi("Hello", context(0, { config: { chat: true } }));
  await provider.callApi("[sic] a text", context(0));
  assert.deepEqual(bodies.map(({ path, messages, prompt }) => [path, messages ?? prompt]), [
    ["/openai/v1/chat/completions", list],
    ["/openai/v1/chat/completions", [{ role: "user", content: "Hello" }]],
    ["/openai/v1/completions", "[sic] a text"],
  ]);
  assert.equal(bodies[0].key, "Bearer k");
});

test("tool calls, thoughts, log-probabilities and ignored fields are reported", async () => {
  const calls = [{ id: "1", type: "function", function: { name: "f", arguments: "{}" } }];
  const message = { content: null, tool_calls: calls, reasoning_content: "hm" };
  const logprobs = { content: [{ logprob: -0.5 }, { logprob: -1 }] };
  answer = (_body, response) =>
    send(response, { choices: [{ message, logprobs, finish_reason: "tool_calls" }] }, 200, { "x-srb-ignored": "foo" });
  const { output, logProbs, metadata } = await new SrbProvider({ config: { url, chat: true, seed: 3 } }).callApi("A", context(0));
  assert.deepEqual([output, logProbs], [calls, [-0.5, -1]]);
  assert.deepEqual(metadata, { seed: 3, index: 0, finishReason: "tool_calls", reasoning: "hm", ignored: "foo" });
});

test("a refused request is an error of all its calls, and the next call asks again with the same seeds", async () => {
  const provider = new SrbProvider({ config: { url, n: 4, seed: 5 } });
  answer = (_body, response) => send(response, { error: { message: "n must be from 1 to 2, got 4" } }, 400);
  for (const { error, metadata } of await call(provider, 2)) {
    assert.equal(error, "HTTP 400: n must be from 1 to 2, got 4");
    assert.deepEqual(metadata.http, { status: 400, statusText: "Bad Request" });
  }
  answer = texts;
  assert.deepEqual((await call(provider, 2)).map(({ metadata }) => metadata.seed), [5, 6]);
  assert.equal(bodies.length, 2);
});

test("an error after spaces, text that isn't JSON, missing alternatives and no server are errors", async () => {
  const provider = new SrbProvider({ config: { url, n: 2 } });
  answer = (_body, response) => response.writeHead(200).end(`  ${JSON.stringify({ error: { message: "timeout" } })}`);
  assert.equal((await provider.callApi("A", context(0))).error, "HTTP 200: timeout");
  answer = (_body, response) => response.writeHead(502).end("<html>");
  assert.equal((await provider.callApi("A", context(0))).error, "HTTP 502: not JSON: <html>");
  answer = (_body, response) => send(response, { choices: [{ text: "a" }] });
  assert.equal((await provider.callApi("A", context(0))).error, "HTTP 200: the server sent 1 of 2 alternatives");
  const nobody = new SrbProvider({ config: { url: "http://127.0.0.1:1" } });
  assert.match((await nobody.callApi("A", context(0))).error, /^http:\/\/127\.0\.0\.1:1\/openai\/v1\/completions: fetch failed/);
});

test("an alternative that fails leaves the others", async () => {
  const choices = [{ text: "a", finish_reason: "stop" }, { text: "", finish_reason: "error", error: { message: "broke" } }];
  answer = (_body, response) => send(response, { choices });
  const answers = await call(new SrbProvider({ config: { url, n: 2 } }), 2);
  assert.deepEqual(answers.map(({ output, error }) => [output, error]), [["a", undefined], [undefined, "broke"]]);
});

test("branches are refused", async () => {
  const { error } = await new SrbProvider({ config: { url, branches: [{}] } }).callApi("A", context(0));
  assert.equal(error, "branches can't be used in config: list one provider for each setting");
  assert.equal(bodies.length, 0);
});

test("the request is aborted when all its calls are", async () => {
  const arrived = new Promise((resolve) => (answer = (_body, response) => {
    response.writeHead(200).flushHeaders();
    resolve(response);
  }));
  const provider = new SrbProvider({ config: { url, n: 3, seed: 1 } });
  const stops = [new AbortController(), new AbortController()];
  const calls = stops.map(({ signal }, k) => provider.callApi("A", context(k), { abortSignal: signal }));
  const response = await arrived;
  stops[0].abort(new Error("first"));
  await assert.rejects(calls[0], /first/);
  assert.equal(aborted, 0);
  const closed = once(response, "close");
  stops[1].abort(new Error("second"));
  await assert.rejects(calls[1], /second/);
  await closed;
  assert.equal(aborted, 1);
  answer = texts;
  assert.equal((await provider.callApi("A", context(2))).metadata.seed, 1);
  await assert.rejects(provider.callApi("A", context(0), { abortSignal: stops[0].signal }), /first/);
});
