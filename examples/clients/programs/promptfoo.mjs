// needs: promptfoo
import assert from "node:assert";
import promptfoo from "promptfoo";

process.env.PROMPTFOO_DISABLE_TELEMETRY = "1";
process.env.PROMPTFOO_DISABLE_UPDATE = "1";
process.env.OPENAI_API_KEY = "none";
process.env.LLAMA_BASE_URL = process.env.HOST;
const config = { apiBaseUrl: `${process.env.HOST}/openai/v1`, max_tokens: 5 };
const evaluated = await promptfoo.evaluate({
  prompts: ["Once upon"],
  providers: [{ id: `openai:completion:${process.env.MODEL}`, config }, { id: "llama", config: { n_predict: 5 } }],
  tests: [{ vars: {} }],
  writeLatestResults: false,
}, { cache: false });
const results = evaluated.results ?? (await evaluated.toEvaluateSummary()).results;
for (const each of results) assert.ok(each.response?.output, JSON.stringify(each.error));
process.exit(0);
