// @ts-check
// Formatted text, as word processors and web pages put it on the clipboard, as Markdown: headings, bold, italics, block
// quotes, lists and scene breaks.

const [ELEMENT, TEXT] = [1, 3]; // Node.ELEMENT_NODE, Node.TEXT_NODE
const BLOCKS = /^(P|DIV|H[1-6]|LI|UL|OL|BLOCKQUOTE|SECTION|ARTICLE|TABLE|TBODY|TR|DD|DT|DL|PRE|BODY|HTML|FIGURE|MAIN|HEADER|FOOTER)$/;
const UNSEEN = /^(STYLE|SCRIPT|TITLE|META|LINK|TEMPLATE|HEAD)$/;

const CELLS = /^(TD|TH)$/;

/** @typedef {{ depth: number, number: number | null }} List `number` is of the last item; null if items have none */
/** @typedef {{ bold: boolean, italic: boolean, heading: number, quote: boolean, isKept: boolean, list?: List }} Style */

/** The style of an element's content. Google Docs has all text in a `<b>` of normal weight. */
function styleOf(element, outer) {
  const { nodeName: name } = element;
  const css = element.getAttribute("style") ?? ""; // not `style`, which the page's Content-Security-Policy empties
  const valueOf = (property) => new RegExp(`(?:^|;)\\s*${property}\\s*:\\s*([\\w-]+)`, "i").exec(css)?.[1];
  const weight = valueOf("font-weight");
  const slant = valueOf("font-style");
  const bold = weight ? /^bold/.test(weight) || Number(weight) >= 600 : outer.bold || name === "B" || name === "STRONG";
  const italic = slant ? slant !== "normal" : outer.italic || name === "I" || name === "EM";
  const heading = /^H[1-6]$/.test(name) ? Number(name[1]) : outer.heading;
  const isKept = outer.isKept || name === "PRE" || /^pre/.test(valueOf("white-space") ?? "");
  return { bold, italic, heading, quote: outer.quote || name === "BLOCKQUOTE", isKept, list: listOf(element, outer.list) };
}

/** @returns {List | undefined} */
function listOf(element, outer) {
  if (!/^[UO]L$/.test(element.nodeName)) return outer;
  return { depth: outer ? outer.depth + 1 : 0, number: element.nodeName === "OL" ? Number(element.getAttribute("start") ?? 1) - 1 : null };
}

/** Return the sign of the next item of a list, such as "- " or "2. ". */
const signOf = (/** @type {List} */ list) => `${"  ".repeat(list.depth)}${list.number === null ? "-" : `${++list.number}.`} `;

/** Return the sign of an item of Word, which has it as text; undefined if this isn't one. */
function signOfWord(element) {
  const css = element.getAttribute("style") ?? "";
  if (!/mso-list\s*:\s*ignore/i.test(css)) return undefined;
  const words = element.textContent.trim();
  return `${/^\w+[.)]$/.test(words) ? words : "-"} `;
}

/** Wrap a run in a sign. Space at its ends stays outside: `**bold** `, not `**bold **`. */
function wrap(text, sign) {
  const [, before, words, after] = /^(\s*)(.*?)(\s*)$/s.exec(text) ?? [];
  return words ? `${before}${words.split("\n").map((line) => line && sign + line + sign).join("\n")}${after}` : text;
}

const SIGNS = { bold: "**", italic: "*" };

/** Return the Markdown of runs: neighbours of the same style are between one pair of signs, italics within bold. */
function join(runs, names) {
  const [name, ...inner] = names;
  if (!name) return runs.map((run) => run.text).join("");
  const groups = [];
  for (const run of runs) {
    const last = groups.at(-1);
    if (last && (last[0][name] === run[name] || !run.text.trim())) last.push(run);
    else groups.push([run]);
  }
  return groups.map((group) => (group[0][name] ? wrap(join(group, inner), SIGNS[name]) : join(group, inner))).join("");
}

/** Return a block as Markdown. */
function lineOf({ runs, style, sign }) {
  const text = join(runs, style.heading ? [] : ["bold", "italic"]).replace(/ *\n */g, "\n").trim();
  if (!text) return "";
  if (style.heading) return `${"#".repeat(style.heading)} ${text.replace(/\s+/g, " ")}`;
  const line = sign + text;
  return style.quote ? line.replace(/^/gm, "> ") : line;
}

/** Return formatted text, a DOM node, as Markdown, or null if it has no formatting that Markdown keeps. */
export function markdownOf(root) {
  const blocks = [];
  let isFormatted = false;
  let sign = ""; // of an item whose text comes next
  const begin = (style) => blocks.push({ runs: [], style, sign: "" });
  const add = (text, style) => {
    if (sign && text.trim()) [blocks.at(-1).sign, sign] = [sign, ""];
    blocks.at(-1).runs.push({ ...style, text });
  };
  const walk = (node, /** @type {Style} */ outer) => {
    if (node.nodeType === TEXT) {
      const text = outer.isKept ? node.textContent : node.textContent.replace(/[ \t\r\n]+/g, " ");
      add(text, { bold: outer.bold, italic: outer.italic });
      isFormatted ||= Boolean(text.trim() && (outer.bold || outer.italic || outer.heading || outer.quote));
      return;
    }
    const { nodeName: name } = node;
    if (node.nodeType !== ELEMENT || UNSEEN.test(name)) return;
    if (name === "BR") return add("\n");
    if (name === "HR") {
      isFormatted = true;
      begin({ ...outer, heading: 0 });
      add("* * *");
      return begin(outer);
    }
    const word = signOfWord(node);
    if (word) return void (sign = word);
    const style = styleOf(node, outer);
    const isBlock = BLOCKS.test(name);
    if (isBlock) begin(style);
    if (name === "LI") sign = signOf(outer.list ?? { depth: 0, number: null });
    if (CELLS.test(name) && blocks.at(-1).runs.some((run) => run.text.trim())) add(" | ");
    for (const child of node.childNodes) walk(child, style);
    if (isBlock) begin(outer);
  };
  begin({ bold: false, italic: false, heading: 0, quote: false, isKept: false });
  walk(root, blocks[0].style);
  if (!isFormatted) return null;
  const lines = blocks.map((block) => ({ line: lineOf(block), isItem: Boolean(block.sign) })).filter(({ line }) => line);
  return lines.map(({ line, isItem }, k) => (k ? (isItem && lines[k - 1].isItem ? "\n" : "\n\n") : "") + line).join("");
}
