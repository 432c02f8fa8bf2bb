// How many tokens a text has: those of what was counted last, and an estimate of what differs from that. Pure.

const LETTERS = 4; // of a token, where nobody has counted yet
const FEW = 50; // tokens, which don't say how many letters a token has

export class Count {
  #text = "";
  #tokens = 0;

  know(text, tokens) {
    this.#text = text;
    this.#tokens = tokens;
  }

  of(text) {
    const letters = this.#tokens < FEW ? LETTERS : this.#text.length / this.#tokens;
    const tokens = this.#tokens + (text.length - this.#text.length) / letters;
    return { tokens: Math.max(0, Math.round(tokens)), isExact: text === this.#text };
  }
}
