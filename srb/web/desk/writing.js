// @ts-check
// Requests: from what lies on the desk to alternatives that are being written.

import { cancel, evaluate } from "../lib/api.js";
import { opening } from "../lib/length.js";
import { showProgress } from "../lib/messages.js";
import { branches, drawSeed } from "../settings/compare.js";
import { textOf } from "../story/tree.js";
import { suffixOf } from "./bridge.js";
import { Requests } from "./requests.js";
import { lengthOf, promptOf } from "./rewriter.js";

export class Writing extends Requests {
  // New alternatives of the text so far, or of each of the columns to compare. Throws an Error in words.
  async generate() {
    const { desk } = this;
    const columns = desk.compare.columns();
    const mix = columns[0].label === null && desk.settings.styles.mix;
    const asked = { ...this.#ready(mix || columns), isMix: Boolean(mix) };
    const taken = desk.take();
    const isWhole = ({ prompt }) => prompt !== undefined;
    const parents = await this.#parents(asked.columns.map((each) => (isWhole(each) ? { before: each.prompt } : taken)), asked.fields);
    if (parents) return this.#generate(asked, parents, () => desk.settle(taken, parents[0], [...new Set(parents)]));
  }

  // New alternatives behind a node, without columns to compare.
  generateFrom(id) {
    return this.#generate(this.#ready([{ label: null, fields: {} }]), [id], () => this.desk.show());
  }

  // New alternatives that begin with another word in place of the one that was taken. The text as it was stays in the tree, or a draft.
  async otherwise({ before, marks }, choice, isPart) {
    const { desk } = this;
    const parent = await desk.write({ before, marks: marks.slice(0, before.length) });
    const fork = await desk.add(desk.tree.chosen(parent, choice, isPart));
    desk.keep(fork);
    return this.generateFrom(fork.id);
  }

  // New versions of a passage that was taken, in its place.
  async rewrite(taken, how) {
    const { desk } = this;
    const { fields } = this.#ready([]);
    Object.assign(fields, { seed: fields.seed ?? drawSeed(), max_tokens: lengthOf(taken.passage) });
    const prompt = await promptOf(taken, how, desk.context, fields);
    const id = await desk.write(taken);
    return this.#generate({ columns: [{ label: how, fields: {} }], fields, instead: { prompt } }, [id], () => desk.settle(taken, id, [id]));
  }

  // New alternatives that lead to what stands behind the cursor: drawn from what is before it, and chosen by how well that follows.
  async bridge() {
    const { desk } = this;
    if (desk.settings.unseen.checked) throw new Error("New openings only can't be combined with Bridge. Turn it off in Settings.");
    const { columns, fields } = this.#ready([{ label: null, fields: {} }]);
    const taken = desk.take();
    const parents = await this.#parents([taken], fields);
    const wanted = { suffix: suffixOf(taken), stop_at_suffix: true };
    if (parents) return this.#generate({ columns, fields, instead: wanted }, parents, () => desk.settle(taken, parents[0], parents));
  }

  // More alternatives like one: at its place, with its beginning, and drawn as it was; how many and how long, as is set now.
  async like(node) {
    const { desk } = this;
    const { settings, tree } = desk;
    const { fields: now, until } = this.#ready([]);
    const drawn = Object.entries(node.settings ?? now).filter(([name]) => settings.fields.has(name)); // a server's story has others, too
    const fields = { ...Object.fromEntries(drawn), n: now.n, logprobs: now.logprobs, seed: drawSeed() };
    const isBridge = node.follows !== undefined;
    const label = isBridge ? null : (node.label ?? `Like alternative ${node.order + 1}`);
    const stem = tree.stem(node.id, isConstrained([fields]) ? 0 : opening(textOf(node)).length); // what fits a grammar does so as a whole
    const id = stem.id ?? (await desk.add(stem)).id;
    const place = tree.start(id);
    const before = tree.text(place);
    const { passage, behind = tree.after(place) } = tree.nodes.get(place) ?? {};
    const asked = { columns: [{ label, fields: {} }], fields };
    if (passage) {
      const prompt = await promptOf({ before, passage, behind }, node.label, desk.context, fields);
      asked.instead = { prompt: prompt + tree.text(id).slice(before.length) };
    } else if (isBridge) asked.instead = { suffix: suffixOf({ before, behind }), stop_at_suffix: true };
    else Object.assign(asked, { until, fields: { ...fields, max_tokens: now.max_tokens } });
    const show = () => {
      const isHere = tree === desk.tree && tree.shown.includes(node.parent); // whoever has gone elsewhere meanwhile isn't called back
      if (isHere) desk.go(tree.current, [...new Set([id, ...tree.shown])]);
    };
    return this.#generate(asked, [id], show);
  }

  // What is asked for, as it is set now.
  #ready(columns) {
    const { settings } = this.desk;
    const fields = settings.read();
    if (columns.length > 1) fields.seed ??= drawSeed();
    return { columns, fields, until: settings.until };
  }

  // parents: the node that each column goes on from. show() is called when the alternatives are there. instead: what else
  // is sent; its prompt is in place of the text.
  async #generate({ columns, fields, until = undefined, instead = undefined, isMix = false }, parents, show) {
    const { desk } = this;
    const batch = Date.now();
    // Cards stand in rows of columns. Columns of settings are one request, and each text is one of its own.
    const ask = async (parent, asked, first) => {
      const node = desk.tree.nodes.get(parent);
      const healed = isHealed(node, [fields, ...asked.map((each) => each.fields)]) || undefined;
      const settings = asked.map((each) => chosen({ ...fields, ...each.fields }));
      const plan = Array.from({ length: isMix ? fields.n : fields.n * asked.length }, (_, index) => {
        const order = first + (index * columns.length) / asked.length;
        const label = columns[order % columns.length].label ?? undefined;
        return { parent, order, label, batch, healed, until: until && { ...until, from: 0 }, settings: settings[index % asked.length] };
      });
      const add = (request) => plan.map((each, index) => desk.tree.add({ ...each, request, index, after: 0 }));
      const avoiding = desk.settings.avoiding(fields, desk.tree.seen(parent));
      const place = instead?.prompt ? desk.store.place(desk.tree, parent) : await this.#place(parent, { ...fields, n: plan.length });
      return this.ask({ ...branches(asked, avoiding, isMix), heal: healed, ...place, ...instead }, (request) => {
        const nodes = desk.store.isShared ? [] : add(request);
        if (until && desk.store.isShared) desk.limit(request, { ...until, from: 0 });
        show();
        if (nodes.length) desk.cards.reveal(nodes[0]);
        return nodes;
      });
    };
    if (columns[0].prompt === undefined) return ask(parents[0], columns, 0);
    await Promise.all(columns.map((column, k) => ask(parents[k], [column], k)));
  }

  // Has the text so far in the tree, and shows what is there. Its node and what is sent of it; undefined when reading it was
  // stopped.
  async place() {
    const { desk } = this;
    const taken = desk.take();
    const [id] = (await this.#parents([taken], {})) ?? [];
    if (id === undefined) return undefined;
    desk.settle(taken, id, [id]);
    return { id, prompt: (await desk.context.fit(desk.tree, id)) ?? desk.tree.prompt(id) };
  }

  // Where a request of these fields goes on from, and what it sends of the text.
  async #place(id, fields) {
    const { context, store, tree } = this.desk;
    const cut = await context.fit(tree, id, fields);
    return { ...store.place(tree, id), ...(cut && { prompt: cut }) };
  }

  // Writes on in a node; in a story that others see, too, below it.
  async continue(node) {
    const { desk } = this;
    const { settings, store, tree } = desk;
    if (tree.children(node.id).length) return desk.go(node.id); // its text must stay: others go on from its end
    const fields = { ...settings.read(), n: 1 };
    if (!store.isShared)
      return this.ask({ ...fields, ...(await this.#place(node.id, fields)) }, (request) => {
        const until = settings.until && { ...settings.until, from: textOf(node).length };
        Object.assign(node, { request, index: 0, after: 0, until, endsAt: undefined });
        delete node.end;
        return [node];
      });
    const column = { label: `${node.label ?? `Alternative ${node.order + 1}`}, continued`, fields: {} };
    fields.seed ??= drawSeed();
    await this.ask({ ...branches([column], fields), ...(await this.#place(node.id, fields)) }, (request) => {
      if (settings.until) desk.limit(request, { ...settings.until, from: 0 });
      desk.go(tree.current, [...tree.shown, node.id]);
      return [];
    });
  }

  // The nodes of texts, as desk.write takes them. What was typed gets its token ids from the server, and is evaluated, unless the
  // story is kept there. null when that was stopped.
  async #parents(texts, fields) {
    const { desk } = this;
    const written = new Map();
    for (const each of texts) if (!written.has(each.before)) written.set(each.before, await desk.write(each));
    const ids = texts.map(({ before }) => written.get(before));
    for (const id of desk.store.isShared ? [] : new Set(ids)) {
      const node = desk.tree.nodes.get(id);
      if (!node?.typed || !node.pieces.length || node.pieces[0].ids) continue;
      const text = desk.tree.text(id);
      const cut = await desk.context.idsOfCut(desk.tree, id, fields);
      if (cut) {
        Object.assign(node.pieces[0], { ids: cut });
        node.whole = true;
        desk.save(node);
        continue;
      }
      const leaving = new AbortController();
      const move = (isLost) => {
        reading.isLost = isLost;
        this.showState();
      };
      const stop = () => {
        reading.isStopped = true;
        return reading.id && cancel(reading.id, leaving);
      };
      const reading = { isReading: true, stop };
      const opened = (id) => (reading.id = id);
      const listener = { onOpen: opened, onProgress: showProgress, onLost: () => move(true), onBack: () => move(false) };
      const evaluating = () => evaluate(text, { ...listener, signal: leaving.signal });
      const known = await this.during(reading, evaluating);
      if (!known) return null;
      node.pieces[0].ids = known;
      node.whole = true;
      desk.save(node);
    }
    return ids;
  }
}

// What was set, as the tree shows it.
const chosen = ({ n, logprobs, ...others }) => others;

const CONSTRAINTS = ["grammar", "regex", "lark", "json_schema"]; // which nothing can be healed with

const isConstrained = (fields) => fields.some((each) => CONSTRAINTS.some((name) => name in each));

// Whether the last token of a typed text is taken back, and written anew with the word that it belongs to.
const isHealed = (node, fields) =>
  Boolean(node?.typed && node.pieces.length && !node.passage) && !isConstrained(fields);
