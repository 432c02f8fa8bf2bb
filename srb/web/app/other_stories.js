// @ts-check
// The search in all other stories. Results are links; their addresses name a story and a place in it.

import { highlightMatch } from "../desk/search_panel.js";
import { create, find, replaceItems } from "../lib/dom.js";
import { safely } from "../lib/messages.js";
import { storyTitle } from "../story/titles.js";

const MOST = 100; // results to show

export class OtherStories {
  query = find("#find");
  button = find("#find-in-others");
  status = find("#other-stories-status");
  list = find("#other-stories");

  /** @param {import("./story_list.js").StoryList} storyList */
  constructor(storyList) {
    this.storyList = storyList;
    const look = safely(() => this.#look());
    this.query.addEventListener("input", () => this.#clear());
    this.query.addEventListener("keydown", ({ key, isComposing }) => key === "Enter" && !isComposing && look());
    this.button.addEventListener("click", look);
    this.#clear();
  }

  #clear() {
    this.turn = Symbol("whose answers are wanted");
    this.button.disabled = !this.query.value.trim();
    this.status.textContent = "";
    replaceItems(this.list, []);
  }

  async #look() {
    this.#clear();
    const { turn, storyList } = this;
    const query = this.query.value.trim();
    if (!query) return;
    this.status.textContent = "Searching …";
    let [count, searched] = [0, ""];
    try {
      for await (const { found, progress } of storyList.stories.find(query, storyList.story)) {
        if (turn !== this.turn) return;
        this.list.append(...found.slice(0, MOST - count).map(item));
        count += found.length;
        searched = progress;
        if (count > MOST) break;
        this.status.textContent = `Searching … ${count} found in ${progress}.`;
      }
    } catch (error) {
      if (turn === this.turn) this.status.textContent = `${count || "Nothing"} found before the search failed.`;
      throw error;
    }
    if (turn === this.turn) this.status.textContent = this.#said(count, searched);
  }

  #said(count, searched) {
    const most = `Showing the first ${MOST} results, from ${searched}. The rest wasn't searched.`;
    const all = count > MOST ? most : `${count || "Nothing"} found in other stories.`;
    const own = find("#move").hidden ? "" : "This browser's own stories weren't searched. Move them to the server first.";
    return [all, this.storyList.stories.unsearched, own].join(" ").trim();
  }
}

function item({ story, id, kind, before, match, after }) {
  const where = [`in “${storyTitle(story)}”`, kind].filter(Boolean).join(" · ");
  return create("li", {}, create("a", { href: `#${story.id}/${id}` }, ...highlightMatch({ before, match, after })), create("small", { textContent: where }));
}
