// needs: ai @ai-sdk/openai-compatible zod
import assert from "node:assert";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, streamObject, streamText } from "ai";
import { z } from "zod";

const srb = createOpenAICompatible({
  name: "srb",
  baseURL: `${process.env.HOST}/openai/v1`,
  supportsStructuredOutputs: true,
});
const model = srb(process.env.MODEL);
assert.ok((await generateText({ model, prompt: "Say hello", maxOutputTokens: 8 })).text);
let text = "";
for await (const part of streamText({ model, prompt: "Say hello", maxOutputTokens: 8 }).textStream) text += part;
assert.ok(text);

const schema = z.object({
  mail: z.email().max(20),
  scores: z.record(z.enum(["x", "y"]), z.int().min(0).max(9)),
  day: z.iso.date(),
  pet: z.discriminatedUnion("kind", [
    z.object({ kind: z.literal("cat") }),
    z.object({ kind: z.literal("dog"), barks: z.boolean() }),
  ]),
  code: z.string().startsWith("x").endsWith("y").max(4),
});
const asked = { model, schema, prompt: "Invent", temperature: 0, maxOutputTokens: 200 };
assert.deepEqual(Object.keys((await generateObject(asked)).object.scores), ["x", "y"]);
const { partialObjectStream, object } = streamObject(asked);
for await (const part of partialObjectStream) assert.ok(part);
assert.ok((await object).mail);
const counts = z.object({ counts: z.record(z.string(), z.number()) });
assert.ok((await generateObject({ ...asked, schema: counts, prompt: "Give one" })).object.counts);
