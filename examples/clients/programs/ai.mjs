// needs: ai @ai-sdk/openai-compatible zod
import assert from "node:assert";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";

const srb = createOpenAICompatible({ name: "srb", baseURL: `${process.env.HOST}/openai/v1` });
const model = srb(process.env.MODEL);
assert.ok((await generateText({ model, prompt: "Say hello", maxOutputTokens: 8 })).text);
let text = "";
for await (const part of streamText({ model, prompt: "Say hello", maxOutputTokens: 8 }).textStream) text += part;
assert.ok(text);
