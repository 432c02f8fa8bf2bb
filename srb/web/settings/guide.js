// @ts-check
// What the settings are called, and what they mean to a writer: [title, a sentence]. index.html says where each group stands.

export const GROUPS = {
  first: {
    max_tokens: ["Length", "Ends with a whole sentence, unless you count in tokens: half a word or more each."],
    n: ["Alternatives", "How many to write."],
    temperature: ["Temperature", "0 is predictable, higher is wilder."],
    diversity: ["Variety", "How different the alternatives are. 0 leaves it to chance; 2 is a good start."],
    banned_strings: ["Banned phrases", "Never written. Begin a line with (?i) to ignore capitals."],
  },
  words: {
    top_k: ["Shortlist", "Each word is chosen from this many of the most likely ones. 0 is off."],
    top_p: ["Shortlist by probability", "Each word is chosen from the most likely ones that together have this probability. 1 is off."],
    min_p: ["Minimum probability", "Leaves out words that are less likely than this share of the most likely one. 0.05 keeps nonsense out; 0 is off."],
    typical_p: ["Typical words", "Prefers words that are neither obvious nor odd. 1 is off."],
    top_n_sigma: ["Distance from the best", "Leaves out words that are far less likely than the best ones. 1 is strict; 0 is off."],
    smoothing_factor: ["Smoothing", "Evens out the most likely words and pushes the others away. Try 0.3; higher is tamer, 0 is off."],
    smoothing_curve: ["Smoothing curve", "Above 1, unlikely words are pushed further away, and likely ones less."],
    xtc_probability: ["Skip the obvious", "How often the most obvious words are skipped. Try 0.5; 0 is off."],
    xtc_threshold: ["What counts as obvious", "Words with more than this probability can be skipped."],
    dynatemp_range: ["Adaptive temperature", "How much the temperature varies: up where many words fit, down where few do. 0 is off."],
    dynatemp_exponent: ["Adaptive temperature: curve", "How sharply the temperature reacts. 1 is in proportion."],
    mirostat: ["Steady surprise", "1 or 2 keeps the whole text equally surprising, in place of the settings above. 0 is off."],
    mirostat_tau: ["Steady surprise: level", "Low is plain, high is odd."],
    mirostat_eta: ["Steady surprise: reaction", "How quickly it corrects a text that gets too plain or too odd."],
    adaptive_target: ["Target probability", "Prefers words of about this probability, from 0 to 1. Negative is off."],
    adaptive_decay: ["Target probability: steadiness", "How slowly the target adapts to what was written."],
  },
  repetition: {
    repeat_penalty: ["Repetition penalty", "Makes recent words less likely. 1.1 is strong; 1 is off."],
    repeat_last_n: ["What counts as recent", "How many tokens back these penalties look. -1 is the whole text."],
    presence_penalty: ["Prefer new words", "Makes every recent word less likely by the same amount. 0 is off."],
    frequency_penalty: ["Avoid frequent words", "Makes a recent word less likely each time it appears. 0 is off."],
    dry_multiplier: ["No loops", "Keeps whole phrases from coming back. Try 0.8; 0 is off."],
    dry_base: ["No loops: growth", "How much stronger this gets with each further word of the phrase."],
    dry_allowed_length: ["No loops: free length", "Phrases of up to this many tokens may come back."],
    dry_penalty_last_n: ["No loops: how far back", "How many tokens back it looks. -1 is the whole text."],
    dry_sequence_breakers: ["No loops: boundaries", "A phrase ends at each of these."],
  },
  difference: {
    distinct: ["Different first words", "Every alternative begins with a different word."],
    avoid: ["Openings to avoid", "No alternative begins with the same eight words as one of these texts."],
  },
  away: {
    negative_prompt: ["Negative prompt", "A text whose continuation yours should not resemble. It works best if it ends the way yours does."],
    guidance_scale: ["Guidance scale", "How strongly to keep away from it. 1 is off, 1.5 to 3 is usual. Each alternative then takes twice the work."],
  },
  endings: {
    stop: ["End at", "An alternative ends before any of these."],
    min_tokens: ["Minimum length", "An alternative doesn't end by itself before this many tokens."],
    ignore_eos: ["Never end by itself", "Keeps writing where the model would have ended."],
  },
  other: {
    seed: ["Seed", "The same seed gives the same words. Leave it empty for new ones each time."],
    ahead: ["Write ahead", "How many more alternatives to write while you read. Generate at the same place then shows them at once."],
  },
  // What a server has and no group names stands here, too, with the server's own words.
  engineers: {
    grammar: ["GBNF grammar", "The text must match it."],
    regex: ["Regular expression", "The whole text must match it."],
    lark: ["Lark grammar", "In llguidance's dialect of Lark. The text must match it."],
    json_schema: ["JSON schema", "The text is JSON that fits it."],
    structured_outputs: ["Structured outputs", "JSON: the same constraints in vLLM's notation."],
    banned_tokens: ["Banned tokens", "Token ids, or texts whose tokens never appear."],
    logit_bias: ["Logit bias", "JSON: what is added to the logits of tokens, from -100 to 100. false bans a token."],
    samplers: ["Sampler order", "The samplers to use, in this order. All others are off."],
    min_keep: ["Minimum candidates", "How many tokens the samplers leave at least."],
    lora: ["Adapters", "JSON: the LoRA adapters to use, with their scales."],
  },
};

export const GUIDE = Object.assign({}, ...Object.values(GROUPS));

/** The titles of all settings, by name. */
export const TITLES = Object.fromEntries(Object.entries(GUIDE).map(([name, [title]]) => [name, title]));

/** The title of a setting; its name if it has none. */
export const titleOf = (name) => TITLES[name] ?? name;

// What a style sets, or leaves to the server.
export const STYLED = ["temperature", "samplers", "min_keep", ...Object.keys(GROUPS.words), ...Object.keys(GROUPS.repetition)];

// Values that go together. What a style doesn't name is left to the server.
export const STYLES = {
  "Server defaults": {},
  Careful: { temperature: 0.5, top_p: 0.9 },
  Lively: { temperature: 1, min_p: 0.05, top_k: 0, top_p: 1 },
  Wild: { temperature: 1.3, min_p: 0.1, top_k: 0, top_p: 1 },
  Unexpected: { temperature: 1, min_p: 0.02, top_k: 0, top_p: 1, xtc_probability: 0.5 },
  "Without repetition": { dry_multiplier: 0.8, repeat_last_n: 256, presence_penalty: 0.3 },
};
