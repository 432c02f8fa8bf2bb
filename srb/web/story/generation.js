// @ts-check
// A running request: its events become the pieces of its nodes. It continues when the page is closed.
//
// Requests of this page and of others are read by event ids, so a reload, a lost connection and another writer are
// the same case. Only one thing depends on the store: a node on the server is never cut.

import { cancel, read, submit } from "../lib/api.js";
import { endOf } from "../lib/length.js";
import { textOf } from "./tree.js";

/** @typedef {import("./tree.js").StoryNode} StoryNode */

export const LOST = "the connection was lost; this is what had arrived";

export class Generation {
  /**
   * @param {Record<string, any>} listener `changed(node)`; `ended(node)`, which saves it; `received(event)`; `stateChanged()`,
   *   when the status may have changed
   * @param {string | null} [id] of an existing request
   */
  constructor(listener, id = null) {
    this.listener = listener;
    /** @type {{ id: any, response: Response | null }} */
    this.request = { id, response: null };
    this.nodes = []; // by index; some may have left the tree since
    this.running = new Set();
    this.hasBegun = this.isLost = this.isGone = this.isStopped = false;
    this.done = null; // the last event
    this.leaving = new AbortController();
    this.seen = new Map(); // arrival time of a node's last piece
  }

  /** Submit the request. Resolves to its id. */
  async ask(body) {
    this.isBridge = "suffix" in body;
    this.request = await submit({ ...body, return_tokens: true, return_progress: true, detach: true });
    return this.request.id;
  }

  /** Leave reading the request to others. */
  leave() {
    this.request.response?.body?.cancel();
  }

  /** Read new events for these nodes. */
  async read(nodes) {
    for (const node of nodes) this.nodes[node.index ?? 0] = node;
    this.running = new Set(nodes.filter((node) => node.end === undefined));
    try {
      await read(this.request, {
        after: Math.max(...nodes.map((node) => node.after ?? 0)),
        onEvent: (event, id) => this.#take(event, id),
        onLost: () => this.#move({ isLost: true }),
        onBack: () => this.#move({ isLost: false, hasBegun: true }),
        signal: this.leaving.signal,
      });
      this.#endAll("cut off");
    } catch (error) {
      if (error.name !== "AbortError" && ![404, 410].includes(error.status)) throw error;
      this.#move({ isGone: true });
      this.#endAll(LOST);
    }
  }

  #move(state) {
    Object.assign(this, state);
    this.listener.stateChanged();
  }

  /** Stop one alternative, or all. */
  async stop(node) {
    if (!node) this.isStopped = true;
    if (this.request.id) await cancel(this.request.id, this.leaving, node?.index);
  }

  #take(event, id) {
    if (event.event === "start") for (const node of this.running) node.seed = event.seeds[node.index];
    if (event.event === "start") this.#move({ hasBegun: true });
    if (event.event === "done") this.done = event;
    const node = this.nodes[event.index];
    if (node && this.running.has(node)) {
      node.after = id;
      if (event.event === "stream") this.#append(node, node.healed && !node.pieces.length ? healFirst(node, event) : event);
      if (event.event === "error") node.fault = event.error.message;
      if (event.event === "stop") this.#stop(node, event);
    }
    this.listener.received(event);
  }

  #append(node, event) {
    node.pieces.push(pieceOf(event));
    const now = performance.now();
    if (node.length === undefined) node.length = node.milliseconds = 0;
    else node.milliseconds += now - (this.seen.get(node) ?? now);
    this.seen.set(node, now);
    node.length += event.tokens?.length ?? 0;
    if (!atLength(node)) return this.listener.changed(node);
    const kept = this.#end(node, endReason(node.reason));
    Promise.resolve(kept).then(() => this.stop(node)).catch(() => {}); // it ends by itself later
  }

  #stop(node, event) {
    if (node.endsAt !== undefined) {
      cut(node, [...textOf(node)].slice(0, node.endsAt).join("").length);
      return this.#end(node, endReason(node.reason));
    }
    if (event.finish_reason === "stop") dropTheEnd(node, event.stop_reason);
    const { finish_reason, stop_reason } = event;
    node.reason = { finish_reason, stop_reason };
    node.follows = event.suffix_logprob;
    this.#end(node, endReason(event, node.fault));
  }

  #endAll(end) {
    for (const node of this.running) this.#end(node, end);
  }

  #end(node, end) {
    node.end = end;
    delete node.fault;
    this.running.delete(node);
    const kept = this.listener.ended(node);
    this.listener.stateChanged();
    return kept;
  }
}

/** Convert an event to a piece. @returns {import("./tree.js").Piece} */
export function pieceOf(event) {
  const piece = { text: event.text, ids: event.isUnknown ? null : (event.tokens ?? []) };
  if (event.top_logprobs) {
    piece.p = Math.exp(event.logprob);
    piece.top = event.top_logprobs.map((each) => ({ id: each.id, text: each.token, p: Math.exp(each.logprob) }));
  }
  return piece;
}

/**
 * Convert the first event after token healing. Its token starts with the text of the prompt's last token, and
 * replaces it. Only choices that start the same are kept.
 */
export function healFirst(node, event) {
  const n = event.token?.includes("\ufffd") ? NaN : event.token?.length - event.text.length;
  if (n === 0) {
    node.healed = false; // no token was replaced
    return event;
  }
  if (!(n > 0)) return { ...event, isUnknown: true, top_logprobs: undefined }; // without probabilities, the token's text is unknown
  const top = event.top_logprobs?.filter((each) => each.token.startsWith(event.token.slice(0, n)));
  return { ...event, top_logprobs: top?.map((each) => ({ ...each, token: each.token.slice(n) })) };
}

/** The stop string or end token isn't part of the text, so a continuation must not have it. */
function dropTheEnd(node, stopString) {
  const last = node.pieces.at(-1);
  if (!last) return;
  if (stopString !== null) last.ids = null; // a token may be half text and half stop string
  if (!last.ids) return;
  if (last.ids.length === 1 && !last.text) node.pieces.pop();
  else last.ids = last.ids.slice(0, -1);
}

function cut(node, length) {
  shorten(node, length);
  node.endsAt = [...textOf(node)].length; // as the server counts
  node.reason = { finish_reason: "length", stop_reason: null };
}

/** Cut a node that has reached its length. Returns whether it has. */
function atLength(node) {
  const end = node.until ? endOf(textOf(node).slice(node.until.from), node.until) : -1;
  if (end >= 0) cut(node, node.until.from + end);
  return end >= 0;
}

/**
 * Apply the lengths of a story's nodes, which are stored by request. Alternatives that ended while no page was open
 * are cut now, unless they were kept or continued.
 * @param {StoryNode[]} nodes
 * @param {Record<string, import("./tree.js").Until>} [untils]
 * @returns {{ untils: Record<string, any>, late: StoryNode[] }} lengths of running requests, and nodes that were cut
 */
export function applyLengthLimits(nodes, untils = {}) {
  const isWanted = new Set(nodes.filter((node) => node.kept).map((node) => node.id).concat(nodes.map((node) => node.parent)));
  const known = nodes.filter(({ request }) => request && untils[request]);
  for (const node of known) node.until ??= untils[node.request ?? ""];
  const isLate = (node) => node.end !== undefined && node.endsAt === undefined && !isWanted.has(node.id) && atLength(node);
  const late = known.filter(isLate);
  for (const node of late) node.end = endReason(/** @type {any} */ (node.reason));
  const running = known.filter((node) => node.end === undefined);
  return { untils: Object.fromEntries(running.map(({ request }) => [request, untils[request ?? ""]])), late };
}

/** Shorten the text of a node to this many characters. */
export function shorten(node, length) {
  let rest = length;
  const k = node.pieces.findIndex(({ text }) => (rest -= text.length) <= 0);
  node.pieces.length = k + 1;
  const last = node.pieces[k];
  if (rest < 0) Object.assign(last, { text: last.text.slice(0, rest), ids: null });
}

/** Describe why an alternative ended. */
export function endReason({ finish_reason, stop_reason }, fault = "the server gave no reason") {
  if (finish_reason === "stop" && stop_reason === "suffix") return "ended where the rest fits best";
  if (finish_reason === "stop") return stop_reason === null ? "came to its end" : `ended at ${JSON.stringify(stop_reason)}`;
  if (finish_reason === "length") return "reached its length";
  if (finish_reason === "error") return `failed: ${fault}`;
  const reasons = { cancelled: "stopped", timeout: "exceeded the server's time limit", shutdown: "the server was shut down" };
  return reasons[stop_reason] ?? "cut off";
}
