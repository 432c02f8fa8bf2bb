// One request that is running: its events become the pieces of its nodes.

import { cancel, complete } from "./api.js";

export class Generation {
  // nodes: one per index. listener: opened(), changed(node), ended(node), told(event).
  constructor(nodes, body, listener) {
    this.nodes = nodes;
    this.body = { ...body, return_tokens: true, return_progress: true };
    this.listener = listener;
    this.id = null;
    this.running = new Set(nodes);
    this.seen = new Map(); // when a node's last piece came
  }

  async run() {
    try {
      await complete(this.body, {
        onOpen: (id) => {
          this.id = id;
          for (const node of this.nodes) delete node.end;
          this.listener.opened();
        },
        onEvent: (event) => this.#take(event),
      });
    } finally {
      for (const node of this.id ? this.running : []) this.#end(node, "the connection was lost; this is what had arrived");
    }
  }

  // Ends one alternative, or all that still run.
  async stop(node) {
    if (!this.id) return;
    if (node) await cancel(this.id, this.nodes.indexOf(node));
    else await cancel(this.id);
  }

  #take(event) {
    const node = this.nodes[event.index];
    if (event.event === "start") this.nodes.forEach((each, index) => (each.seed = event.seeds[index]));
    else if (event.event === "stream") this.#append(node, event);
    else if (event.event === "error" && node) node.fault = event.error.message;
    else if (event.event === "stop") this.#stop(node, event);
    this.listener.told(event);
  }

  #append(node, event) {
    const piece = { text: event.text, ids: event.tokens ?? [] };
    if (event.top_logprobs) {
      piece.p = Math.exp(event.logprob);
      piece.top = event.top_logprobs.map((each) => ({ id: each.id, text: each.token, p: Math.exp(each.logprob) }));
    }
    node.pieces.push(piece);
    const now = performance.now();
    if (node.length === undefined) node.length = node.milliseconds = 0;
    else node.milliseconds += now - (this.seen.get(node) ?? now);
    this.seen.set(node, now);
    node.length += piece.ids.length;
    this.listener.changed(node);
  }

  #stop(node, event) {
    if (event.finish_reason === "stop") dropTheEnd(node, event.stop_reason);
    this.#end(node, reason(event, node));
  }

  #end(node, end) {
    node.end = end;
    delete node.fault;
    this.running.delete(node);
    this.listener.ended(node);
  }
}

// What ended an alternative isn't part of its text, so what continues it mustn't have it either.
function dropTheEnd(node, stopString) {
  const last = node.pieces.at(-1);
  if (!last) return;
  if (stopString !== null) last.ids = null; // a token may be half text and half stop string
  else if (last.ids.length === 1 && !last.text) node.pieces.pop();
  else last.ids = last.ids.slice(0, -1);
}

function reason(event, node) {
  if (event.finish_reason === "stop")
    return event.stop_reason === null ? "came to its end" : `ended at ${JSON.stringify(event.stop_reason)}`;
  if (event.finish_reason === "length") return "reached its length";
  if (event.finish_reason === "error") return `failed: ${node.fault ?? "the server doesn't say why"}`;
  return { cancelled: "stopped", timeout: "took longer than the server allows", shutdown: "the server was stopped" }[event.stop_reason];
}
