// @ts-check
// Running requests: their events update nodes and the status line.

import { find, isFocusLost } from "../lib/dom.js";
import { hideProgress, showError, showProgress, showStatus } from "../lib/messages.js";
import { withAhead } from "../settings/compare.js";
import { titleOf } from "../settings/guide.js";
import { Generation } from "../story/generation.js";

/** @typedef {import("../story/tree.js").StoryNode} StoryNode */

export class Requests {
  /** @param {import("./desk.js").Desk} desk */
  constructor(desk) {
    this.desk = desk;
    this.generations = new Map(); // by node
    this.requests = new Set(); // running
    this.over = []; // ended since none ran
    this.asked = new Set(); // ids of requests that a shared store reports
    this.read = new WeakSet(); // nodes whose tokens were read
    this.stopButton = find("#stop");
    this.listener = {
      changed: (node) => {
        desk.cards.change(node);
        desk.saveLater(node);
      },
      ended: (node) => {
        this.generations.delete(node);
        desk.cards.update(node);
        desk.versions.mark();
        desk.treeDrawing.update(node);
        return desk.save(node);
      },
      received: (event) => {
        handle(event);
        if (event.event === "progress" && find("#progress").hidden) this.showState(); // the text is read
      },
      stateChanged: () => this.showState(),
    };
  }

  isRunning(node) {
    return this.generations.has(node);
  }

  /**
   * Continue reading requests that ran when the page was closed or were started on another device. Requests of this
   * page are read even if a shared store reported their ends first: the store has the text without tokens.
   */
  async resume() {
    const isUnread = (node) => node.end === undefined || (this.asked.has(node.request) && !this.read.has(node));
    const isLeft = (node) => node.request && !this.isRunning(node) && isUnread(node);
    const left = Map.groupBy([...this.desk.tree.nodes.values()].filter(isLeft), (node) => node.request);
    const resume = async ([request, nodes]) => {
      const generation = new Generation(this.listener, request);
      const reported = nodes.filter((node) => node.end !== undefined).map((node) => [node, { ...node }]);
      for (const [node] of reported) Object.assign(node, { pieces: [], after: 0, end: undefined, length: undefined });
      for (const node of nodes) if (node.after) node.milliseconds = NaN; // the time of missed events is unknown
      if (this.asked.has(request)) this.desk.cards.reveal(nodes[0]);
      await this.during(generation, () => this.#read(generation, nodes));
      if (!generation.isGone) return;
      for (const [node, { pieces, end, length }] of reported) {
        Object.assign(node, { pieces, end, length }); // the text stays; only its tokens are lost
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

  /**
   * @param {Record<string, any>} body
   * @param {(request: string) => StoryNode[]} begin returns the request's nodes, or none if a shared store will
   *   report them
   */
  async ask(body, begin) {
    const generation = new Generation(this.listener);
    await this.during(generation, async () => {
      const request = await generation.ask(withAhead(body));
      const nodes = begin(request);
      if (nodes.length) return this.#read(generation, nodes);
      this.asked.add(request);
      generation.leave();
      const reported = [...this.desk.tree.nodes.values()].find((node) => node.request === request); // the store may be faster than the response
      if (reported) this.desk.cards.reveal(reported);
    });
    await this.resume(); // including nodes that were reported meanwhile
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

  /** Run something that Stop can stop. */
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

  showState() {
    showStatus(describeRequests([...this.requests], this.over));
  }
}

function handle(event) {
  if (event.event === "progress") showProgress(event);
  if (event.event === "start" && event.ignored.length)
    showError(new Error(`These settings have no effect here: ${event.ignored.map(titleOf).join(", ")}`));
  if (event.event === "error" && event.index === undefined) showError(new Error(event.error.message));
}

export const countAlternatives = (number) => (number === 1 ? "One alternative" : `${number} alternatives`);

const sum = (numbers) => numbers.reduce((total, each) => total + each, 0);

/** Describe the running generations, or if there are none, those that have just ended. */
export function describeRequests(/** @type {any[]} */ going, /** @type {any[]} */ over) {
  if (going.some((each) => each.isLost)) return "The connection was lost. The page is trying again; press Stop to give up.";
  const running = sum(going.map((each) => (each.hasBegun ? each.running.size : 0)));
  if (going.some((each) => each.isBridge)) return "Trying ways to the text after the cursor. They appear together, the best first.";
  if (running) return `${countAlternatives(running)} being written.`;
  if (going.length) return "Waiting for the server to start.";
  if (over.some((each) => each.isLost || each.isGone)) return "The connection was lost. The text that arrived is here.";
  if (over.some((each) => each.isStopped)) return "Stopped.";
  const done = over.filter((each) => each.done);
  return done.length ? `Done: ${countAlternatives(sum(done.map((each) => each.nodes.length))).toLowerCase()}.` : "";
}
