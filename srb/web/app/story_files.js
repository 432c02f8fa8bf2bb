// @ts-check
// Export and import of stories.

import { exportDocument, importDocument } from "../lib/api.js";
import { find } from "../lib/dom.js";
import { download, readJson } from "../lib/files.js";
import { safely, showStatus } from "../lib/messages.js";
import { exportLoom, exportLoomsidian, importLoom } from "../story/loom_files.js";
import { exportTapestry, importTapestry } from "../story/tapestry_file.js";
import { endingOf, fileName } from "../story/text_file.js";
import { shorten, suggestTitle } from "../story/titles.js";
import { ROOT } from "../story/tree.js";
import { exportTree, importTree } from "../story/tree_file.js";
import { chooseEncoding } from "./encoding.js";

const NOTES_SHOWN = 200; // characters

const PATHS = {
  md: (text) => new Blob([`${text}\n`], { type: "text/markdown" }),
  txt: (text) => new Blob([`${text}\n`], { type: "text/plain" }),
  docx: (text, title) => exportDocument({ format: "docx", text, title, language: navigator.language }),
  epub: (text, title) => exportDocument({ format: "epub", text, title, language: navigator.language }),
};

async function readText(file) {
  const read = (encoding) => importDocument(file, "txt", encoding);
  const found = await read("");
  const chosen = found.encodings?.[1] ? await chooseEncoding(found, read) : found;
  return chosen && { drafts: [[ROOT, chosen.text.replace(/\n$/, "")]] };
}

/** Read a file. Resolves to the title and contents of a story. */
const READERS = {
  txt: readText,
  md: readText,
  markdown: readText,
  json: async (file) => readTree(await readJson(file)),
  tapestry: readTapestry,
  docx: (file) => readDocument(file, "docx"),
  epub: (file) => readDocument(file, "epub"),
};

const readTree = (data) => (data?.format === "srb-tree" ? importTree(data) : (importLoom(data) ?? importTree(data)));

/** Show what is being done, and for how long, until it is done. */
async function timed(what, result) {
  const begin = Date.now();
  const show = () => showStatus(`${what} ${Math.floor((Date.now() - begin) / 1000)} s`);
  show();
  const clock = setInterval(show, 1000);
  return result.finally(() => clearInterval(clock));
}

async function readDocument(file, format) {
  const { title, text, left_out: leftOut } = await timed(`Reading ${file.name} …`, importDocument(file, format));
  const isWithout = !leftOut.length || confirm(`The story will be without these parts of ${file.name}: ${leftOut.join("; ")}. Import it?`);
  return isWithout ? { title, drafts: [[ROOT, text]] } : null;
}

async function readTapestry(file) {
  const { notes, ...story } = importTapestry(await file.arrayBuffer());
  const isWithout = !notes || confirm(`${file.name} has notes, which a story can't have: ${shorten(notes, NOTES_SHOWN)} Import it without them?`);
  return isWithout ? story : null;
}

/**
 * @param {import("../desk/desk.js").Desk} desk
 * @param {import("./story_list.js").StoryList} storyList
 */
export function listenToFiles(desk, storyList) {
  const title = () => storyList.story.title || suggestTitle({ pieces: [{ text: desk.story.value }] });
  const about = () => ({ model: find("#model").textContent, title: storyList.story.title, settings: desk.settings.values, beside: desk.background.values, marks: desk.story.drafts.allMarks, ...desk.editorChat.values });
  const json = (data) => new Blob([JSON.stringify(data)], { type: "application/json" });
  const trees = {
    srb: () => json(exportTree(desk.tree, desk.story.drafts.all, about())),
    loomsidian: () => json(exportLoomsidian(desk.tree, desk.story.drafts.all)),
    loom: () => json(exportLoom(desk.tree, desk.story.drafts.all)),
    tapestry: () => new Blob([exportTapestry(desk.tree, desk.story.drafts.all)]),
  };
  find("#export-path").addEventListener("click", safely(async () => {
    const format = find("#path-format").value;
    download(fileName(title(), format), await PATHS[format](desk.story.value, title()));
  }));
  find("#export").addEventListener("click", safely(() => {
    const format = find("#tree-format").value;
    download(fileName(title(), format === "tapestry" ? format : "json"), trees[format]());
  }));
  find("#import").addEventListener("change", safely(async ({ target }) => {
    const [file] = target.files;
    if (!file) return;
    try {
      const reader = READERS[endingOf(file, Object.keys(READERS))];
      const read = await reader(file);
      if (read) await storyList.make(read.title || file.name.replace(/\.[^.]*$/, ""), read, () => desk.save());
    } finally {
      target.value = "";
      showStatus("");
    }
  }));
}
