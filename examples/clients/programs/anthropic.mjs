// needs: @anthropic-ai/sdk
import assert from "node:assert";
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: process.env.HOST, apiKey: "none" });
const body = { model: process.env.MODEL, max_tokens: 8, messages: [{ role: "user", content: "Say hello" }] };
assert.ok((await client.messages.create(body)).content[0].text);
assert.ok(await client.messages.stream(body).finalText());

const input_schema = { type: "object", properties: { a: { enum: [1, 2] } }, required: ["a"] };
const tools = [{ name: "add", description: "Adds", input_schema }];
const called = await client.messages.stream({ ...body, max_tokens: 64, tools, tool_choice: { type: "any" } }).finalMessage();
const call = called.content.find((block) => block.type === "tool_use");
assert.ok([1, 2].includes(call.input.a), JSON.stringify(called));
