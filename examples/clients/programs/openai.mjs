// needs: openai
import assert from "node:assert";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.env.HOST}/openai/v1`, apiKey: "none" });
const model = process.env.MODEL;
const messages = [{ role: "user", content: "Say hello" }];
const completion = await client.completions.create({ model, prompt: "Once upon", n: 3, max_tokens: 5 });
assert.equal(completion.choices.length, 3);
let text = "";
for await (const chunk of await client.chat.completions.create({ model, messages, max_tokens: 8, stream: true })) {
  text += chunk.choices[0]?.delta.content ?? "";
}
assert.ok(text);
const response = await client.responses.create({ model, input: "Say hello", max_output_tokens: 8 });
assert.ok(response.output_text);
await assert.rejects(client.completions.create({ model, prompt: "p", n: 0 }), OpenAI.BadRequestError);
