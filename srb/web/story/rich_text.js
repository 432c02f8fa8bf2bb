// @ts-check
// Formatted text, as word processors and web pages put it on the clipboard, as Markdown: headings, bold, italics, block
// quotes, lists and scene breaks.

const TEXT = 3; // Node.TEXT_NODE
const BLOCKS = /^(P|DIV|H[1-6]|LI|UL|OL|BLOCKQUOTE|SECTION|ARTICLE|TABLE|TBODY|TR|DD|DT|DL|PRE|BODY|HTML|FIGURE|MAIN|HEADER|FOOTER)$/;
const UNSEEN = /^(STYLE|SCRIPT|TITLE|META|LINK|TEMPLATE|HEAD)$/;

/** @typedef {{ bold: boolean, italic: boolean, heading: number, quote: boolean, isKept: boolean }} Style */

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
  return { bold, italic, heading, quote: outer.quote || name === "BLOCKQUOTE", isKept };
}

/** Wrap a run in a sign. Space at its ends stays outside: `**bold** `, not `**bold **`. */
function wrap(text, sign) {
  const [, before, words, after] = /^(\s*)(.*?)(\s*)$/s.exec(text) ?? [];
  return words ? `${before}${words.split("\n").map((line) => line && sign + line + sign).join("\n")}${after}` : text;
}

const SIGNS = { bold: "**", italic: "*" };

/**
 * Return the Markdown of runs: neighbours of the same style are between one pair of signs, italics within bold.
 * @param {any[]} runs
 * @param {string[]} names of styles, from outer to inner
 */
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
function lineOf({ runs, style, isItem }) {
  const text = join(runs, style.heading ? [] : ["bold", "italic"]).replace(/ *\n */g, "\n").trim();
  if (!text) return "";
  if (style.heading) return `${"#".repeat(style.heading)} ${text.replace(/\s+/g, " ")}`;
  const line = isItem ? `- ${text}` : text;
  return style.quote ? line.replace(/^/gm, "> ") : line;
}

/**
 * Return formatted text as Markdown, or null if it has no formatting that Markdown keeps.
 * @param {any} root a DOM node
 * @returns {string | null}
 */
export function markdownOf(root) {
  const blocks = [];
  let isFormatted = false;
  const begin = (style, isItem = false) => blocks.push({ runs: [], style, isItem });
  const walk = (node, /** @type {Style} */ outer) => {
    if (node.nodeType === TEXT) {
      const text = outer.isKept ? node.textContent : node.textContent.replace(/[ \t\r\n]+/g, " ");
      blocks.at(-1).runs.push({ text, bold: outer.bold, italic: outer.italic });
      isFormatted ||= Boolean(text.trim() && (outer.bold || outer.italic || outer.heading || outer.quote));
      return;
    }
    const { nodeName: name } = node;
    if (UNSEEN.test(name)) return;
    if (name === "BR") return blocks.at(-1).runs.push({ text: "\n" });
    if (name === "HR") {
      begin({ ...outer, heading: 0 });
      blocks.at(-1).runs.push({ text: "* * *" });
      return begin(outer);
    }
    const style = styleOf(node, outer);
    const isBlock = BLOCKS.test(name);
    if (isBlock) begin(style, name === "LI");
    for (const child of node.childNodes) walk(child, style);
    if (isBlock) begin(outer);
  };
  begin({ bold: false, italic: false, heading: 0, quote: false, isKept: false });
  walk(root, blocks[0].style);
  if (!isFormatted) return null;
  const lines = blocks.map((block) => ({ line: lineOf(block), isItem: block.isItem })).filter(({ line }) => line);
  return lines.map(({ line, isItem }, k) => (k ? (isItem && lines[k - 1].isItem ? "\n" : "\n\n") : "") + line).join("");
}
