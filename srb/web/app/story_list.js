// @ts-check
// The list of stories, and the open one. The fragment of the address names the open story, and optionally a place in
// it.

import { create, find, isFocusLost } from "../lib/dom.js";
import { plural, safely, showError, showStatus, when } from "../lib/messages.js";
import { moveDrafts } from "../story/drafts.js";
import { storyTitle } from "../story/titles.js";
import { ROOT } from "../story/tree.js";
import { hideDesk, rest } from "./early.js";

export const openStory = (story) => (location.hash = story.id);

export class StoryList {
  /**
   * @param {import("../story/browser_store.js").Stories} stories on the server, or in the browser
   * @param {import("../story/browser_store.js").Stories} browser in the browser
   * @param {() => Record<string, any>} choices the settings that a new story starts with
   */
  constructor(stories, browser, choices) {
    this.stories = stories;
    this.browser = browser;
    this.choices = choices;
    this.story = null;
    this.listed = () => {}; // called after the stories were listed
    find("#rename").addEventListener("click", safely(() => this.#rename(this.story)));
    find("#move").addEventListener("click", safely(() => this.#move()));
  }

  /** Open the store of the story that the address names, or of the last changed one. */
  async open() {
    let data = await this.stories.list();
    if (!data.length) data = [(await this.stories.make()).story];
    const [named, place] = location.hash.slice(1).split("/");
    this.story = data.find(({ id }) => id === named) ?? data[0];
    this.place = this.story.id === named ? place : undefined; // a place in the story
    if (named && this.story.id !== named) showError(new Error("That story no longer exists. Here is your latest."));
    if (this.story.id) history.replaceState(null, "", `#${this.story.id}`);
    addEventListener("hashchange", async () => {
      if (document.body.dataset.ready) hideDesk();
      await rest();
      location.reload();
    });
    this.showTitle(this.story);
    return this.stories.store(this.story);
  }

  /** Make a story, optionally with contents, and open it after `leave()`. */
  async make(title = "", { nodes = [], current = ROOT, drafts = [], marks = {}, beside = undefined, ...others } = {}, leave = () => {}) {
    const { story, ids } = await this.stories.make(title, nodes, beside);
    const typed = drafts.map(([place, text]) => /** @type {[string, any]} */ ([place, { text, marks: marks[place] }]));
    await this.browser.keep(story.id, { ...this.choices(), current: ids.get(current), beside, isPlaceUnsent: true, ...others }, moveDrafts(typed, ids));
    await leave();
    openStory(story);
  }

  async remove(story) {
    if (!confirm(`Delete “${storyTitle(story)}”? It stays in the trash for 30 days.`)) return;
    await this.stories.remove(story);
    if (story.id !== this.story.id) return this.list();
    const [next] = await this.stories.list();
    if (next) openStory(next);
    else await this.make();
  }

  async list() {
    find("#move").hidden = this.stories === this.browser || !(await this.#unmoved()).length;
    const row = (story) => {
      const about = [when.format(story.changed), story.words !== undefined && plural(story.words, "word")].filter(Boolean).join(" · ");
      const leave = ({ ctrlKey, metaKey, shiftKey, target }) => {
        const isHere = !ctrlKey && !metaKey && !shiftKey && target.hash !== location.hash;
        if (isHere && document.body.dataset.ready) hideDesk(); // before `hashchange`: a key may come earlier
      };
      const ariaCurrent = story.id === this.story.id ? "true" : null;
      const link = create("a", { href: `#${story.id}`, textContent: storyTitle(story), onclick: leave, ariaCurrent });
      const onclick = safely(() => this.remove(story));
      const remove = create("button", { type: "button", textContent: "Delete", ariaLabel: `Delete ${storyTitle(story)}`, onclick });
      return create("li", {}, link, remove, create("small", { textContent: about }));
    };
    find("#story-list").replaceChildren(...(await this.stories.list()).map(row));
    if (isFocusLost()) find("#story-list a").focus({ preventScroll: true }); // the button that was pressed is gone
    await this.listed();
  }

  showTitle(story) {
    this.story = story;
    document.title = story.title || "srb"; // the name of a printed file, too
    find("#title-part").hidden = false;
    for (const each of [find("#title"), find("#story-list [aria-current]")]) if (each) each.textContent = storyTitle(story);
  }

  async #rename(story) {
    const title = prompt("Title of the story:", story.title);
    if (title === null) return;
    await this.#name(story, title);
    await this.list();
  }

  /** Name a story. If it was named in another tab or on another device meanwhile, the writer chooses. */
  async #name(story, title) {
    try {
      this.showTitle(await this.stories.rename(story, title));
    } catch (error) {
      if (error.status !== 409) throw error;
      const [now = story] = (await this.stories.list()).filter(({ id }) => id === story.id);
      this.showTitle(now);
      const isKept = now.title !== title && !confirm(`In another tab or on another device, this story was named “${now.title}” meanwhile. Name it “${title}” instead?`);
      if (!isKept) await this.#name(now, title);
    }
  }

  /** Return the browser's stories that aren't empty. */
  async #unmoved() {
    const all = (await this.browser.list()).map(async (story) => ({ story, ...(await this.browser.store(story).load()) }));
    return (await Promise.all(all)).filter(({ story: { id }, nodes, drafts }) => nodes.length || drafts.length || this.browser.hasNotes(id));
  }

  async #move() {
    showStatus("Moving …");
    let last;
    for (const { story: old, nodes, page, drafts } of await this.#unmoved()) {
      const { story, ids } = await this.stories.make(old.title, nodes, page.beside);
      const here = { current: ids.get(page.current), shown: undefined, steps: undefined, isPlaceUnsent: true };
      await this.browser.keep(story.id, { ...page, ...here }, moveDrafts(drafts, ids));
      this.browser.moveNotes(old.id, story.id, ids);
      await this.browser.erase(old);
      last = story;
    }
    openStory(last);
  }
}
