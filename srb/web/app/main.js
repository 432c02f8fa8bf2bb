// @ts-check
// Starts the page, and connects its buttons.

import { Desk } from "../desk/desk.js";
import { Manuscript } from "../desk/manuscript.js";
import { printManuscript } from "../desk/print.js";
import { health, openapi, setKey } from "../lib/api.js";
import { enableWhile, find, findAll } from "../lib/dom.js";
import { hideError, nameFields, safely, showError, showStatus } from "../lib/messages.js";
import { TITLES } from "../settings/guide.js";
import { listenToSettingSearch } from "../settings/search.js";
import { Settings } from "../settings/settings.js";
import { PASTED } from "../story/authorship.js";
import { BrowserStories, Stories } from "../story/browser_store.js";
import { ServerStories } from "../story/server_store.js";
import { listenToAppearance, listenToFocusMode, listenToFolding } from "./appearance.js";
import { hideDesk, showDesk } from "./early.js";
import { keepFocus, listenToKeys, listenToUndo } from "./keyboard.js";
import { healthOrLast, keepPage } from "./offline.js";
import { OtherStories } from "./other_stories.js";
import { connectPanel, drawHeads, rememberFolds } from "./panels.js";
import { listenToFiles } from "./story_files.js";
import { StoryList } from "./story_list.js";
import { listenToTrash } from "./trash.js";
import { Tour } from "./tour.js";

const onClick = (selector, action) => find(selector).addEventListener("click", action);

/** `resume` continues reading what is being written. */
function listen(/** @type {Desk} */ desk, /** @type {StoryList} */ storyList, /** @type {() => void} */ resume) {
  const { story, writing } = desk;
  const generate = safely(() => writing.generate());
  onClick("#generate", generate);
  onClick("#bridge", safely(() => writing.bridge()));
  enableWhile(find("#bridge"), () => story.parts.before.trim() && story.parts.behind.trim());
  onClick("#stop", safely(() => writing.stopAll()));
  const again = (name) => {
    writing.showState(); // what the status said may be undone by this
    desk.undoHistory[name]();
  };
  for (const name of ["undo", "redo"]) onClick(`#${name}`, () => again(name));
  listenToUndo(story.box, again);
  onClick("#new", safely(async () => {
    if (desk.tree.nodes.size || story.value || desk.store.isShared) {
      hideDesk();
      return storyList.make("", undefined, () => desk.save()).catch(async (error) => {
        await showDesk(story);
        throw error;
      });
    }
    story.focus();
  }));
  listenToFiles(desk, storyList);
  onClick("#error button", () => {
    hideError();
    find("#generate").focus();
  });
  onClick("#delete-story", safely(async () => {
    await writing.stopAll();
    await storyList.remove(storyList.story);
  }));
  for (const opening of findAll("#openings button"))
    opening.addEventListener("click", () => {
      story.type(opening.textContent, PASTED);
      generate();
    });
  connectPanel("options", () => desk.settings.show());
  listenToSettingSearch();
  connectPanel("search", () => desk.searchPanel.begin(), () => story.resume());
  for (const dialog of findAll("#explorer, #rewriter, #comparison, #earlier-forks, #directions")) dialog.addEventListener("close", () => story.resume());
  connectPanel("model-view", () => desk.drawLater());
  connectPanel("ask");
  for (const name of ["#shades", "#blind"]) find(name).addEventListener("change", () => desk.cards.show());
  find("#statistics").addEventListener("toggle", () => desk.drawTree());
  onClick("#reset", () => desk.settings.reset());
  onClick("#naming", ({ target }) => target.setAttribute("aria-pressed", find("#options").classList.toggle("naming")));
  listenToAppearance();
  listenToFocusMode(story);
  listenToFolding();
  listenToKeys();
  const tour = new Tour(desk);
  if (!desk.tree.nodes.size && !story.value) tour.begin();
  keepFocus(story.box, find("main"));
  printManuscript(story, () => storyList.story.title);
  rememberFolds();
  connectPanel("stories", safely(() => {
    desk.drawTree();
    desk.chapters.draw();
    find("#stories [role=treeitem][aria-selected=true]")?.focus({ preventScroll: true });
    return storyList.list();
  }));
  for (const name of ["input", "compositionend"]) document.addEventListener(name, () => desk.saveTyped());
  story.box.addEventListener("input", () => desk.showOpenings());
  for (const name of ["input", "select"]) story.box.addEventListener(name, () => desk.drawLater());
  addEventListener("pagehide", () => desk.leave());
  addEventListener("pageshow", ({ persisted }) => persisted && location.reload()); // what it left is another page's now
  addEventListener("focus", () => desk.resume());
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return void desk.save();
    desk.resume();
    resume();
  });
  addEventListener("beforeunload", (event) => desk.saving.hasUnsaved && event.preventDefault());
  document.addEventListener("keydown", (event) => {
    const isSearch = event.key.toLowerCase() === "f" && !event.shiftKey && !event.altKey;
    if (!(event.ctrlKey || event.metaKey) || !(isSearch || event.key === "Enter")) return;
    if (isSearch && find("dialog:modal:not(.panel)")) return; // which would cover the search
    event.preventDefault();
    const answer = /** @type {any} */ (event.target).closest("dialog")?.querySelector(".main");
    if (isSearch) find("#search").open ? desk.searchPanel.begin() : find("#open-search").click();
    else if (answer) answer.click();
    else if (event.shiftKey) find("#rewrite").click();
    else if (event.altKey) find("#bridge").click();
    else generate();
  });
}

/** Ask for the API key. `resume` continues what failed without one. */
function listenToKeyForm(/** @type {() => void} */ resume) {
  find("#key").addEventListener("submit", (event) => {
    event.preventDefault();
    setKey(find("#key-input").value);
    find("#key").hidden = true;
    hideError();
    showStatus("The key is set. Generate again.");
    resume();
  });
}

/** Open the stories on the server if it has a history, else in the browser. Report if stories can't be stored. */
async function openStoryList(history, choices) {
  const browser = await BrowserStories.open().catch((error) => {
    showError(new Error(`This browser doesn't store your stories: ${error.message}`));
    return new Stories();
  });
  const open = async (stories) => {
    const storyList = new StoryList(stories, browser, choices);
    return { storyList, store: await storyList.open() };
  };
  if (!history) return open(browser);
  return open(new ServerStories(browser)).catch((error) => {
    if (error.status !== 503) throw error;
    error.message += ". Until then, your text is stored in this browser.";
    error.back = "The server stores stories again. Reload the page to see them, and to move this browser's stories there.";
    showError(error);
    return open(browser);
  });
}

const LOOK = 2000; // milliseconds between two looks whether the model is loaded

/** Learn the size of the context, which a server knows once its model is loaded. */
async function learnSize(/** @type {Desk} */ desk) {
  const { status, n_ctx: size } = await health().catch(() => ({}));
  if (size === undefined && status !== "ok") return void setTimeout(learnSize, LOOK, desk);
  if (size === undefined) return;
  desk.context.size = size;
  desk.drawLater();
}

async function begin() {
  let desk;
  drawHeads();
  const resume = () => {
    if (document.hidden) return; // nobody reads along; the store reports the texts when they end
    desk.editorChat.resume();
    desk.writing.resume().catch(showError);
  };
  listenToKeyForm(() => (document.body.dataset.ready ? resume() : location.reload())); // the stories are readable only now
  const [{ components }, { model, history, n_ctx: size }] = await Promise.all([openapi(), healthOrLast()]);
  find("#model").textContent = model;
  nameFields(TITLES);
  const settings = new Settings(components.schemas);
  const story = new Manuscript();
  desk = new Desk(settings, story, size);
  const { storyList, store } = await openStoryList(history, () => desk.choices);
  await desk.open(store);
  new OtherStories(storyList);
  listen(desk, storyList, resume);
  listenToTrash(storyList, desk);
  await showDesk(story);
  if (storyList.place) safely(() => desk.searchPanel.go(storyList.place))();
  if (!desk.tree.nodes.size) story.focus();
  if (size === undefined) setTimeout(learnSize, LOOK, desk);
  resume();
  keepPage().catch(() => {}); // a browser may have none
  let newsTimer, deleted;
  await desk.store.watch({
    changed: (reported) => {
      const node = desk.merge(reported);
      clearTimeout(newsTimer);
      newsTimer = setTimeout(() => {
        desk.showNews(node);
        resume();
      });
    },
    renamed: (story) => storyList.showTitle(story),
    moved: (place) => desk.moved(place),
    deleted: (isErased) => {
      const trashed = "This story was deleted, and is in the trash (Story). What you type now is saved with it: restore it there, or open another story.";
      const erased = "This story was moved to the server, or deleted for good. What you type now isn't saved: copy it, and open another story.";
      showError((deleted = new Error(isErased ? erased : trashed)), { isLasting: true });
    },
    restored: () => {
      hideError(deleted);
      showStatus("This story was restored from the trash.");
      desk.save();
    },
  });
}

safely(begin)();
