// What the settings are called, and what they mean to a writer: [title, a sentence].

// These are in sight.
export const IN_SIGHT = {
  n: ["Alternatives", "How many ways to go on."],
  max_tokens: ["Length", "Words, sentences and paragraphs are written to their end. A token is half a word or more."],
  temperature: ["Temperature", "0 takes the likeliest words; higher is wilder."],
  diversity: ["Diversity", "How far the alternatives keep from saying the same. 0 is off."],
};

// These keep away from a text.
export const AWAY = {
  negative_prompt: ["Negative prompt", "No alternative is to go on as this text would. It works best if it ends as yours does."],
  guidance_scale: ["Guidance scale", "How far to keep away from that: 1 is off, 1.5 to 3 is usual. An alternative then takes the work of two."],
};

// The others, in groups. What a server has and isn't here stands in the last one, with the server's own words.
export const GROUPS = {
  "Which words may come": {
    top_k: ["The likeliest so many", "Only so many words can come at each place, the likeliest ones."],
    top_p: ["The likeliest share", "Only the likeliest words can come, as many as have this probability together; 1 is off."],
    min_p: ["Least chance", "A word must be at least so likely, measured by the likeliest one. 0.05 keeps nonsense out; 0 is off."],
    typical_p: ["Typical words", "Prefers words that are neither obvious nor odd; 1 is off."],
    top_n_sigma: ["Far from the best", "Leaves out what is far less likely than the best words; 1 is strict, 0 is off."],
    smoothing_factor: ["Smoothing", "Brings the likeliest words closer together, and moves the others away. Try 0.3; higher is tamer, 0 is off."],
    smoothing_curve: ["Smoothing's curve", "Above 1, unlikely words are moved further away, and likely ones less."],
    xtc_probability: ["Skip the obvious", "How often the most obvious words are left out. Try 0.5; 0 is off."],
    xtc_threshold: ["What is obvious", "From which chance on a word counts as obvious for that."],
    dynatemp_range: ["Temperature that follows", "Wilder where many words fit, tamer where few do: by so much; 0 is off."],
    dynatemp_exponent: ["How it follows", "How sharply the temperature follows that."],
    mirostat: ["Steady surprise", "1 or 2 keeps the text as surprising all along, in place of the settings above; 0 is off."],
    mirostat_tau: ["How surprising", "What it is kept at: low is plain, high is odd."],
    mirostat_eta: ["How fast", "How quickly it corrects itself."],
    adaptive_target: ["Aim at a chance", "Prefers words of about this chance, from 0 to 1; negative is off."],
    adaptive_decay: ["How steadily", "How slowly that aim adapts to what was written."],
    min_keep: ["Leave at least", "So many words stay possible, whatever the settings above say."],
    samplers: ["Order", "Which of these are used, and in which order."],
  },
  "Against repetition": {
    repeat_penalty: ["Repeat less", "Makes words less likely that were there lately. 1.1 is much; 1 is off."],
    repeat_last_n: ["How far back", "How many tokens back that looks; -1 is the whole text."],
    presence_penalty: ["New words", "Makes every word less likely that was there lately; 0 is off."],
    frequency_penalty: ["Not so often", "The same, and more so the more often it was there; 0 is off."],
    dry_multiplier: ["No loops", "Keeps whole phrases from coming again. Try 0.8; 0 is off."],
    dry_base: ["Longer is worse", "How much stronger that is with each word of the phrase."],
    dry_allowed_length: ["Free length", "Phrases of so many tokens may come again."],
    dry_penalty_last_n: ["Loops: how far back", "How many tokens back it looks; -1 is the whole text."],
    dry_sequence_breakers: ["Where a phrase ends", "Phrases aren't followed across these."],
  },
  "Where it ends": {
    stop: ["End at", "An alternative ends where one of these comes; it isn't part of the text."],
    min_tokens: ["Not before", "It doesn't end by itself before so many tokens."],
    ignore_eos: ["Never by itself", "It writes on where the model would have ended."],
  },
  "What may not come, and what must": {
    banned_strings: ["Never these phrases", "Where one would come, another word is drawn. Begin a line with (?i) for both cases of letters. /.../ is a regular expression."],
    max_rewinds: ["How often", "How often an alternative may go back for that."],
    banned_tokens: ["Never these tokens", "Ids or texts; what a text is made of never comes."],
    logit_bias: ["Likelier, less likely", "What is added to a token's chance, from -100 to 100."],
    avoid: ["Not as these begin", "No alternative begins with the same eight words as one of these."],
    grammar: ["Grammar", "GBNF that the text must match."],
    regex: ["Regular expression", "The whole text must match it."],
    lark: ["Lark grammar", "A grammar in Lark's dialect that the text must match."],
    json_schema: ["JSON schema", "The text is JSON of this form."],
    structured_outputs: ["Structured outputs", "The same in the notation of vLLM."],
  },
  Others: {
    seed: ["Seed", "The same seed draws the same words. Empty: others each time."],
    ahead: ["Already there", "So many more are written while nothing is asked for. Generate at the same place shows them at once."],
    distinct: ["Different first words", "Every alternative begins with another token."],
    lora: ["Adapters", "Which adapters are used, and how strongly."],
  },
};

export const GUIDE = Object.assign({}, IN_SIGHT, AWAY, ...Object.values(GROUPS));

// What a writer reads in place of a setting's name.
export const titleOf = (name) => GUIDE[name]?.[0] ?? name;

// Values that go together. What a style doesn't name is left to the server.
export const STYLES = {
  "As the server has it": {},
  Careful: { temperature: 0.5, top_p: 0.9 },
  Lively: { temperature: 1, min_p: 0.05, top_k: 0, top_p: 1 },
  Wild: { temperature: 1.3, min_p: 0.1, top_k: 0, top_p: 1 },
  Unexpected: { temperature: 1, min_p: 0.02, top_k: 0, top_p: 1, xtc_probability: 0.5 },
  "Without repetition": { dry_multiplier: 0.8, repeat_last_n: 256, presence_penalty: 0.3 },
};
