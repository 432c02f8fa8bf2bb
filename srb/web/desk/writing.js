// @ts-check
// From the text on the desk to requests for alternatives.

import { tokenize } from "../lib/api.js";
import { opening } from "../lib/length.js";
import { branches, drawSeed } from "../settings/compare.js";
import { textOf } from "../story/tree.js";
import { suffixOf } from "./bridge.js";
import { Requests } from "./requests.js";
import { lengthOf, promptOf } from "./rewriter.js";

/** @typedef {import("../story/tree.js").StoryNode} StoryNode */
/** @typedef {import("./desk.js").Taken} Taken */

export class Writing extends Requests {
  /** Generate alternatives of the text: one for each direction, if there are any, or some of each column that is compared. */
  async generate(/** @type {string[]} */ directions = []) {
    const { desk } = this;
    const led = directions.map((direction) => ({ label: direction, fields: { direction } }));
    const columns = led.length ? led : desk.compare.columns();
    const mix = led.length ? led : columns[0].label === null && desk.settings.styles.mix;
    const asked = { ...this.#ready(mix || columns), isMix: Boolean(mix) };
    if (led.length) Object.assign(asked.fields, { n: led.length, seed: asked.fields.seed ?? drawSeed() });
    const taken = desk.take();
    const isWhole = ({ prompt }) => prompt !== undefined;
    const parents = await this.#parents(asked.columns.map((each) => (isWhole(each) ? { before: each.prompt } : taken)));
    return this.#generate(asked, parents, () => desk.settle(taken, parents[0], [...new Set(parents)]));
  }

  generateFrom(/** @type {string} */ id) {
    return this.#generate(this.#ready([{ label: null, fields: {} }]), [id], () => this.desk.show());
  }

  /**
   * Generate alternatives that start with another word in place of one. The old text stays in the tree or as a draft.
   * @param {Taken} taken
   * @param {import("../story/tree.js").Choice} choice
   * @param {boolean} isPart as in `Tree.chosen`
   */
  async replaceWord({ before, marks }, choice, isPart) {
    const { desk } = this;
    const parent = await desk.write({ before, marks: marks.slice(0, before.length) });
    const fork = await desk.add(desk.tree.chosen(parent, choice, isPart));
    desk.keep(fork, { isReplacing: true });
    return this.generateFrom(fork.id);
  }

  async rewrite(/** @type {Taken} */ taken, /** @type {string} */ how) {
    const { desk } = this;
    const { fields } = this.#ready([]);
    Object.assign(fields, { seed: fields.seed ?? drawSeed(), max_tokens: lengthOf(taken.passage) });
    const prompt = await promptOf(taken, how, desk.context, fields);
    const id = await desk.write(taken);
    return this.#generate({ columns: [{ label: how, fields: {} }], fields, instead: { prompt } }, [id], () => desk.settle(taken, id, [id]));
  }

  /** Generate bridges to the text after the cursor: sampled after the text before it, ranked by how well the rest fits. */
  async bridge() {
    const { desk } = this;
    if (desk.settings.options.unseen.checked) throw new Error("New openings only can't be combined with Bridge. Turn it off in Settings.");
    const { columns, fields } = this.#ready([{ label: null, fields: {} }]);
    const taken = desk.take();
    const parents = await this.#parents([taken]);
    const wanted = { suffix: suffixOf(taken), stop_at_suffix: true };
    return this.#generate({ columns, fields, instead: wanted }, parents, () => desk.settle(taken, parents[0], parents));
  }

  /**
   * Generate more alternatives like one: same place, same beginning, same sampling settings. Count and length follow
   * the current settings.
   */
  async like(/** @type {StoryNode} */ node) {
    const { desk } = this;
    const { settings, tree } = desk;
    const { fields: now, until } = this.#ready([]);
    const sampled = Object.entries(node.settings ?? now).filter(([name]) => settings.fields.has(name)); // a story on the server may have other settings
    const direction = node.settings?.direction ? node.label : undefined; // a story on the server has its tokens
    const fields = { ...Object.fromEntries(sampled), n: now.n, logprobs: now.logprobs, seed: drawSeed(), ...(direction && { direction }) };
    const isBridge = node.follows !== undefined;
    const letter = desk.cards.letterOf(node);
    const label = isBridge ? null : letter ? `Like ${letter}` : (node.label ?? `Like alternative ${(node.order ?? 0) + 1}`);
    const stem = tree.stem(node.id, isConstrained([fields]) ? 0 : opening(textOf(node)).length); // a grammar applies to the whole text
    const id = stem.id ?? (await desk.add(stem)).id;
    const place = tree.start(id);
    const before = tree.text(place);
    const { passage, behind = tree.after(place) } = tree.nodes.get(place) ?? {};
    const asked = { columns: [{ label, fields: {} }], fields };
    if (passage) {
      const prompt = await promptOf({ before, passage, behind }, node.label ?? "", desk.context, fields);
      asked.instead = { prompt: prompt + tree.text(id).slice(before.length) };
    } else if (isBridge) asked.instead = { suffix: suffixOf({ before, behind }), stop_at_suffix: true };
    else Object.assign(asked, { until, fields: { ...fields, max_tokens: now.max_tokens } });
    const show = () => {
      const isHere = tree === desk.tree && tree.shown.includes(node.parent); // a writer who has gone elsewhere stays there
      if (isHere) desk.go(tree.current, [...new Set([id, ...tree.shown])]);
    };
    return this.#generate(asked, [id], show);
  }

  #ready(columns) {
    const { settings } = this.desk;
    const fields = settings.read();
    if (columns.length > 1) fields.seed ??= drawSeed();
    return { columns, fields, until: settings.until };
  }

  /**
   * Submit a request for each parent. `parents` are the nodes that the columns continue, `show()` is called when the
   * alternatives exist, and `instead` replaces fields; its prompt replaces the text.
   * @param {{ columns: any[], fields: Record<string, any>, until?: any, instead?: any, isMix?: boolean }} request
   * @param {string[]} parents
   * @param {() => void} show
   */
  async #generate({ columns, fields, until, instead, isMix }, parents, show) {
    const { desk } = this;
    const batch = Date.now();
    /** Cards are in rows of columns. Columns of settings are one request; each text is its own request. */
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
      const avoiding = desk.settings.avoiding(fields, desk.tree.textsBelow(parent));
      const longest = Math.max(0, ...settings.map(({ direction = "" }) => direction.length));
      const room = { n: plan.length, max_tokens: fields.max_tokens > 0 ? fields.max_tokens + longest : undefined };
      const place = instead?.prompt ? desk.store.place(desk.tree, parent) : await this.#place(parent, { ...fields, ...room });
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

  /**
   * Add the current text to the tree, and show its place. Resolves to its node and prompt.
   * @returns {Promise<{ id: string, prompt: string | number[] }>}
   */
  async place() {
    const { desk } = this;
    const taken = desk.take();
    const [id] = await this.#parents([taken]);
    desk.settle(taken, id, [id]);
    return { id, prompt: (await desk.context.fit(desk.tree, id, {})) ?? desk.tree.prompt(id) };
  }

  /** Return where a request continues, and the prompt to send. */
  async #place(id, fields) {
    const { context, store, tree } = this.desk;
    const cut = await context.fit(tree, id, fields);
    return { ...store.place(tree, id), ...(cut && { prompt: cut }) };
  }

  /** Continue a node; in a shared story, add a node after it. */
  async continue(/** @type {StoryNode} */ node) {
    const { desk } = this;
    const { settings, store, tree } = desk;
    if (tree.children(node.id).length) return desk.go(node.id); // its text must stay, since other nodes continue it
    const fields = /** @type {Record<string, any>} */ ({ ...settings.read(), n: 1 });
    if (!store.isShared)
      return this.ask({ ...fields, ...(await this.#place(node.id, fields)) }, (request) => {
        const until = settings.until && { ...settings.until, from: textOf(node).length };
        Object.assign(node, { request, index: 0, after: 0, until, endsAt: undefined });
        delete node.end;
        return [node];
      });
    const column = { label: `${desk.cards.letterOf(node) ?? node.label ?? `Alternative ${(node.order ?? 0) + 1}`}, continued`, fields: {} };
    fields.seed ??= drawSeed();
    await this.ask({ ...branches([column], fields), ...(await this.#place(node.id, fields)) }, (request) => {
      if (settings.until) desk.limit(request, { ...settings.until, from: 0 });
      desk.go(tree.current, [...tree.shown, node.id]);
      return [];
    });
  }

  /**
   * Return the nodes of texts, as `Desk.write` takes them. Unless the story is on the server, typed text gets its token
   * ids.
   */
  async #parents(texts) {
    const { desk } = this;
    const written = new Map();
    for (const each of texts) if (!written.has(each.before)) written.set(each.before, await desk.write(each));
    const ids = texts.map(({ before }) => written.get(before));
    for (const id of desk.store.isShared ? [] : new Set(ids)) {
      const node = desk.tree.nodes.get(id);
      if (!node?.typed || !node.pieces.length || node.pieces[0].ids) continue;
      node.pieces[0].ids = await tokenize(desk.tree.text(id));
      node.whole = true;
      desk.save(node);
    }
    return ids;
  }
}

/** Settings as the tree shows them. */
const chosen = ({ n, logprobs, ...others }) => others;

const CONSTRAINTS = ["grammar", "regex", "lark", "json_schema"]; // these exclude token healing

const isConstrained = (fields) => fields.some((each) => CONSTRAINTS.some((name) => name in each));

/** Whether the last token of typed text is sampled again together with the rest of its word (token healing). */
const isHealed = (node, fields) =>
  Boolean(node?.typed && node.pieces.length && !node.passage) && !isConstrained(fields);
