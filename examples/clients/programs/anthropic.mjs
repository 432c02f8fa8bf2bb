// needs: @anthropic-ai/sdk
import assert from "node:assert";
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: process.env.HOST, apiKey: "none" });
const body = { model: process.env.MODEL, max_tokens: 8, messages: [{ role: "user", content: "Say hello" }] };
assert.ok((await client.messages.create(body)).content[0].text);
assert.ok(await client.messages.stream(body).finalText());
