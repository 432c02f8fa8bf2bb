// needs: ollama
import assert from "node:assert";
import { Ollama } from "ollama";

const client = new Ollama({ host: process.env.HOST });
const model = (await client.list()).models[0].name;
const options = { num_predict: 8 };
assert.ok((await client.version()).version);
assert.ok((await client.generate({ model, prompt: "Say hello", options })).response);
let text = "";
const messages = [{ role: "user", content: "Say hello" }];
for await (const part of await client.chat({ model, messages, stream: true, options })) text += part.message.content;
assert.ok(text);
await assert.rejects(client.generate({ model, prompt: "p", options: { temperature: -1 } }), /temperature/);
