// @ts-check
// The requests that run: what each one says goes to its nodes, and to the status line.

import { find, isFocusLost } from "../lib/dom.js";
import { hideProgress, showError, showProgress, showStatus } from "../lib/messages.js";
import { withAhead } from "../settings/compare.js";
import { titleOf } from "../settings/guide.js";
import { Generation } from "../story/generation.js";

export class Requests {
  constructor(desk) {
    this.desk = desk;
    this.generations = new Map(); // by node, while it runs
    this.requests = new Set(); // what Stop stops
    this.over = []; // those of them that have ended since one began alone
    this.asked = new Set(); // ids of requests whose nodes a shared store tells of
    this.read = new WeakSet(); // nodes whose tokens were read
    this.stopButton = find("#stop");
    this.listener = {
      changed: (node) => {
        desk.cards.change(node);
        desk.saveSoon(node);
      },
      ended: (node) => {
        this.generations.delete(node);
        desk.cards.update(node);
        desk.versions.mark();
        desk.treeDrawing.update(node);
        return desk.save(node);
      },
      told: hear,
      moved: () => this.showState(),
    };
  }

  isRunning(node) {
    return this.generations.has(node);
  }

  // Goes on reading what was being written when the page was closed, or was begun on another device. What was asked for here is
  // read also if a shared store has told of it only when it had ended: the store tells its text, and not the tokens.
  async resume() {
    const isUnread = (node) => node.end === undefined || (this.asked.has(node.request) && !this.read.has(node));
    const isLeft = (node) => node.request && !this.isRunning(node) && isUnread(node);
    const left = Map.groupBy([...this.desk.tree.nodes.values()].filter(isLeft), (node) => node.request);
    const resume = async ([request, nodes]) => {
      const generation = new Generation(this.listener, request);
      const told = nodes.filter((node) => node.end !== undefined).map((node) => [node, { ...node }]);
      for (const [node] of told) Object.assign(node, { pieces: [], after: 0, end: undefined, length: undefined });
      for (const node of nodes) if (node.after) node.milliseconds = NaN; // nobody knows how long what was missed took
      if (this.asked.has(request)) this.desk.cards.reveal(nodes[0]);
      await this.during(generation, () => this.#read(generation, nodes));
      if (!generation.isGone) return;
      for (const [node, { pieces, end, length }] of told) {
        Object.assign(node, { pieces, end, length }); // the text is there, and only its tokens are lost
        this.desk.cards.update(node);
      }
    };
    await Promise.all([...left].map(resume));
  }

  stop(node) {
    return this.generations.get(node)?.stop(node);
  }

  stopAll() {
    return Promise.all([...this.requests].map((each) => each.stop()));
  }

  // Asks for a request; begin(its id) says what its nodes are, or none where a shared store is going to tell of them.
  async ask(body, begin) {
    const generation = new Generation(this.listener);
    await this.during(generation, async () => {
      const request = await generation.ask(withAhead(body));
      const nodes = begin(request);
      if (nodes.length) return this.#read(generation, nodes);
      this.asked.add(request);
      generation.leave();
      const told = [...this.desk.tree.nodes.values()].find((node) => node.request === request); // the store may be quicker than the answer
      if (told) this.desk.cards.reveal(told);
    });
    await this.resume(); // with what has been told already
  }

  async #read(generation, nodes) {
    const { desk } = this;
    for (const node of nodes) {
      this.read.add(node);
      if (node.end === undefined) this.generations.set(node, generation);
      desk.cards.update(node);
    }
    desk.save(...nodes);
    await generation.read(nodes).finally(() => {
      for (const node of nodes) {
        if (this.generations.get(node) === generation) this.generations.delete(node);
        desk.cards.update(node);
      }
      desk.save(...nodes);
    });
  }

  // While something runs that Stop can stop.
  async during(request, run) {
    if (!this.requests.size) this.over = [];
    this.requests.add(request);
    this.stopButton.disabled = false;
    this.showState();
    try {
      return await run();
    } finally {
      this.requests.delete(request);
      this.over.push(request);
      this.stopButton.disabled = this.requests.size === 0;
      if (isFocusLost()) find("#generate").focus({ preventScroll: true });
      hideProgress();
      this.showState();
    }
  }

  // Says how things go.
  showState() {
    showStatus(describeRequests([...this.requests], this.over));
  }

  // Says no more of what has ended.
  forget() {
    this.over = [];
    this.showState();
  }
}

function hear(event) {
  if (event.event === "progress") showProgress(event);
  if (event.event === "start" && event.ignored.length)
    showError(new Error(`These settings have no effect here: ${event.ignored.map(titleOf).join(", ")}`));
  if (event.event === "error" && event.index === undefined) showError(new Error(event.error.message));
}

// What the status line says of requests: of those that go on; when none does, of those that have just ended. Pure.

export const countAlternatives = (number) => (number === 1 ? "One alternative" : `${number} alternatives`);

const sum = (numbers) => numbers.reduce((total, each) => total + each, 0);

// going, over: generations, and readings of a text, which have isReading.
export function describeRequests(going, over) {
  if (going.some((each) => each.isLost)) return "The connection was lost. The page is trying again; press Stop to give up.";
  const running = sum(going.map((each) => (each.hasBegun ? each.running.size : 0)));
  if (going.some((each) => each.isBridge)) return "Trying bridges to the text after the cursor. They appear when all can be compared.";
  if (running) return `${countAlternatives(running)} being written.`;
  if (going.some((each) => each.isReading)) return "Reading the text …";
  if (going.length) return "Waiting for the server to start.";
  if (over.some((each) => each.isLost || each.isGone)) return "The connection was lost. The text that arrived is here.";
  if (over.some((each) => each.isStopped)) return "Stopped.";
  const done = over.filter((each) => each.done);
  return done.length ? `Done: ${countAlternatives(sum(done.map((each) => each.nodes.length))).toLowerCase()}.` : "";
}
