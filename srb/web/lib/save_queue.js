// @ts-check
// Keeping what has changed. What can't be kept is tried again, until it is kept or a later change of it is. Pure.
// What is kept in the browser and the marks on the server's stories both go this way.

const PAUSE = 1000; // milliseconds, before the second try
const LONGEST_PAUSE = 10_000;

export class SaveQueue {
  #waiting = new Map(); // what isn't kept yet, with the number of its last change
  #changes = 0;
  #tries = 0;
  #timer = null;

  // write(items) keeps them as they are then. failed(error) and mended() say how that goes.
  constructor(write, { failed, mended, later = (run, pause) => setTimeout(run, pause) }) {
    this.write = write;
    this.failed = failed;
    this.mended = mended;
    this.later = later;
  }

  // Whether something couldn't be kept so far.
  get isBehind() {
    return this.#tries > 0;
  }

  // Keeps these. It is done when they are kept, or when it was said that they aren't.
  async save(...items) {
    const change = ++this.#changes;
    for (const item of items) this.#waiting.set(item, change);
    try {
      await this.write(items);
      for (const item of items) if (this.#waiting.get(item) === change) this.#waiting.delete(item);
      if (!this.isBehind || this.#waiting.size) return;
      this.#tries = 0;
      this.mended();
    } catch (error) {
      if (!items.some((item) => this.#waiting.has(item))) return; // a later change is kept
      this.failed(error);
      if (this.#timer === null) this.#timer = this.later(() => this.#again(), Math.min(LONGEST_PAUSE, PAUSE * 2 ** this.#tries++));
    }
  }

  #again() {
    this.#timer = null;
    if (this.#waiting.size) return this.save(...this.#waiting.keys());
  }
}
