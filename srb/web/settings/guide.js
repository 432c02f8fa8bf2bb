// @ts-check
/** Titles and hints of the settings, in groups. index.html has a place for each group. */

/** By group and name: the title, and a hint. A setting without an entry is shown under *For engineers* with the server's description. */
export const GROUPS = {
  first: {
    max_tokens: ["Length", "Ends with a whole sentence, except in tokens, which are half a word or more."],
    n: ["Alternatives", "How many to write."],
    temperature: ["Temperature", "0 is predictable; higher is wilder."],
    diversity: ["Variety", "How different the alternatives are. 0 leaves it to chance; 2 is a good start."],
    banned_strings: ["Banned phrases", "Never written."],
  },
  sampling: {
    top_k: ["Top K", "Choose each word from the K most probable ones. 0 is off."],
    top_p: ["Top P", "Choose from the most probable words that together have this probability. 1 is off."],
    min_p: ["Min P", "Drop words below this share of the top word's probability. 0.05 keeps nonsense out; 0 is off."],
    typical_p: ["Typical P", "Prefer words that are neither obvious nor odd. 1 is off."],
    top_n_sigma: ["Top N Sigma", "Drop words far below the most probable ones. 1 is strict; 0 is off."],
    smoothing_factor: ["Smoothing factor", "Evens out the most probable words and pushes the others away. Try 0.3; higher is tamer, 0 is off."],
    smoothing_curve: ["Smoothing curve", "Above 1, improbable words are pushed further away, and probable ones less."],
    xtc_probability: ["XTC probability", "How often the most obvious words are skipped. Try 0.5; 0 is off."],
    xtc_threshold: ["XTC threshold", "Words above this probability can be skipped."],
    dynatemp_range: ["Dynamic temperature range", "How much the temperature varies: up where many words fit, down where few do. 0 is off."],
    dynatemp_exponent: ["Dynamic temperature exponent", "How sharply the temperature reacts. 1 is in proportion."],
    mirostat: ["Mirostat", "1 or 2 keeps the whole text equally surprising, instead of the settings above. 0 is off."],
    mirostat_tau: ["Mirostat tau", "How surprising the text is. Low is plain, high is odd."],
    mirostat_eta: ["Mirostat eta", "How quickly it corrects a text that gets too plain or too odd."],
    adaptive_target: ["Adaptive target", "Prefers words of about this probability, from 0 to 1. Negative is off."],
    adaptive_decay: ["Adaptive decay", "How slowly the target adapts to the text so far."],
  },
  repetition: {
    repeat_penalty: ["Repetition penalty", "Makes recent words less likely. 1.1 is strong; 1 is off."],
    dry_multiplier: ["DRY multiplier", "Keeps whole phrases from repeating. Try 0.8; 0 is off."],
  },
  difference: {
    ahead: ["Write ahead", "How many more alternatives to write while you read. Generate at the same place then shows them at once."],
    distinct: ["Different first words", "Every alternative starts with a different word."],
  },
  away: {
    negative_prompt: ["Negative prompt", "A text that yours should not resemble. It works best if it ends as your text does."],
    guidance_scale: ["Guidance scale", "How strongly to steer away from it. 1 is off, 1.5 to 3 is usual. Each alternative then takes twice the work."],
  },
  endings: {
    stop: ["Stop strings", "An alternative ends before any of these."],
  },
  penalties: {
    repeat_last_n: ["Repetition range", "How many tokens back the penalties look. -1 is the whole text."],
    presence_penalty: ["Presence penalty", "Makes every recent word less likely by the same amount. 0 is off."],
    frequency_penalty: ["Frequency penalty", "Makes a recent word less likely each time it appears. 0 is off."],
    dry_base: ["DRY base", "How much stronger DRY gets with each further word of the phrase."],
    dry_allowed_length: ["DRY allowed length", "Phrases of up to this many tokens may repeat."],
    dry_penalty_last_n: ["DRY range", "How many tokens back DRY looks. -1 is the whole text."],
    dry_sequence_breakers: ["DRY sequence breakers", "A phrase ends at each of these."],
  },
  engineers: {
    seed: ["Seed", "The same seed gives the same words. Leave it empty for new ones each time."],
    include_stop_str_in_output: ["Show the stop string", "The text ends with the stop string that ended it."],
    min_tokens: ["Minimum length", "An alternative doesn't end by itself before this many tokens."],
    ignore_eos: ["Never end by itself", "Keeps writing where the model would have ended."],
    priority: ["Priority", "Requests with the lowest number run first. The others pause meanwhile."],
    avoid: ["Openings to avoid", "No alternative starts with the same eight words as one of these texts."],
    grammar: ["GBNF grammar", "The text must match it."],
    regex: ["Regular expression", "The whole text must match it."],
    lark: ["Lark grammar", "In llguidance's dialect of Lark. The text must match it."],
    json_schema: ["JSON schema", "The text is JSON that fits it."],
    structured_outputs: ["Structured outputs", "JSON: the same constraints in vLLM's notation."],
    stop_token_ids: ["Stop tokens", "JSON: the ids of tokens before which an alternative ends."],
    bad_words: ["Bad words", "Never written as words of their own. Longer words may contain them."],
    banned_tokens: ["Banned tokens", "Token ids, or texts whose tokens never appear."],
    logit_bias: ["Logit bias", "JSON: values to add to the logits of tokens, from -100 to 100. false bans a token."],
    samplers: ["Sampler order", "The samplers to use, in this order. All others are off."],
    min_keep: ["Minimum candidates", "How many tokens the samplers keep at least."],
    lora: ["Adapters", "JSON: the LoRA adapters to use, with their scales."],
  },
};

export const GUIDE = Object.assign({}, ...Object.values(GROUPS));

export const TITLES = Object.fromEntries(Object.entries(GUIDE).map(([name, [title]]) => [name, title]));

/** The title of a setting; its name if it has none. */
export const titleOf = (name) => TITLES[name] ?? name;

/** The settings that a style sets, or leaves to the server. */
export const STYLED = ["temperature", "samplers", "min_keep", ...[GROUPS.sampling, GROUPS.repetition, GROUPS.penalties].flatMap(Object.keys)];

/** Settings that go together. A style leaves all others to the server. */
export const STYLES = {
  Default: {},
  Careful: { temperature: 0.5, top_p: 0.9 },
  Lively: { temperature: 1, min_p: 0.05, top_k: 0, top_p: 1 },
  Wild: { temperature: 1.3, min_p: 0.1, top_k: 0, top_p: 1 },
  Unexpected: { temperature: 1, min_p: 0.02, top_k: 0, top_p: 1, xtc_probability: 0.5 },
  "Without repetition": { dry_multiplier: 0.8, repeat_last_n: 256, presence_penalty: 0.3 },
};
