// The requests that run: what each one says goes to its nodes, and to the status line.

import { withAhead } from "./compare.js";
import { Generation } from "./generation.js";
import { titleOf } from "./guide.js";
import { isLost } from "./keys.js";
import { complain, endProgress, tell, tellProgress } from "./say.js";
import { status } from "./status.js";

export class Running {
  constructor(desk) {
    this.desk = desk;
    this.generations = new Map(); // by node, while it runs
    this.requests = new Set(); // what Stop stops
    this.over = []; // those of them that have ended since one began alone
    this.asked = new Set(); // ids of requests whose nodes a shared store tells of
    this.read = new WeakSet(); // nodes whose tokens were read
    this.stopButton = document.querySelector("#stop");
    this.listener = {
      changed: (node) => {
        desk.cards.change(node);
        desk.saveSoon(node);
      },
      ended: (node) => {
        this.generations.delete(node);
        desk.cards.update(node);
        desk.versions.mark();
        desk.drawing.update(node);
        return desk.save(node);
      },
      told: hear,
      moved: () => this.tell(),
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
    this.tell();
    try {
      return await run();
    } finally {
      this.requests.delete(request);
      this.over.push(request);
      this.stopButton.disabled = this.requests.size === 0;
      if (isLost()) document.querySelector("#generate").focus({ preventScroll: true });
      endProgress();
      this.tell();
    }
  }

  // Says how things go.
  tell() {
    tell(status([...this.requests], this.over));
  }

  // Says no more of what has ended.
  forget() {
    this.over = [];
    this.tell();
  }
}

function hear(event) {
  if (event.event === "progress") tellProgress(event);
  if (event.event === "start" && event.ignored.length)
    complain(new Error(`These settings have no effect here: ${event.ignored.map(titleOf).join(", ")}`));
  if (event.event === "error" && event.index === undefined) complain(new Error(event.error.message));
}
