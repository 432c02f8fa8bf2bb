// @ts-check
// Saves changes. A failed save is tried again until it succeeds or a later save of the same item does.

const PAUSE = 1000; // milliseconds before the second try
const LONGEST_PAUSE = 10_000;

export class SaveQueue {
  #waiting = new Map(); // unsaved items, with the number of their last change
  #changes = 0;
  #tries = 0;
  #timer = null;

  /**
   * @param {(items: any[]) => any} write saves items as they are when it is called
   * @param {{ failed: (error: any) => void, recovered: () => void, later?: (run: () => void, pause: number) => any }}
   *   options
   */
  constructor(write, { failed, recovered, later = (run, pause) => setTimeout(run, pause) }) {
    this.write = write;
    this.failed = failed;
    this.recovered = recovered;
    this.later = later;
  }

  /** Whether something couldn't be saved so far. */
  get hasUnsaved() {
    return this.#tries > 0;
  }

  /** Save items. Resolves when they are saved or the failure is reported. */
  async save(...items) {
    const change = ++this.#changes;
    for (const item of items) this.#waiting.set(item, change);
    try {
      await this.write(items);
      for (const item of items) if (this.#waiting.get(item) === change) this.#waiting.delete(item);
      if (!this.hasUnsaved || this.#waiting.size) return;
      this.#tries = 0;
      this.recovered();
    } catch (error) {
      if (!items.some((item) => this.#waiting.has(item))) return; // a later change was saved
      this.failed(error);
      if (this.#timer === null) this.#timer = this.later(() => this.#again(), Math.min(LONGEST_PAUSE, PAUSE * 2 ** this.#tries++));
    }
  }

  #again() {
    this.#timer = null;
    return this.#waiting.size ? this.save(...this.#waiting.keys()) : undefined;
  }
}
