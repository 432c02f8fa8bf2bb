// @ts-check
// The trash: deleted stories, and the discarded alternatives of the open one.

import { create, find } from "../lib/dom.js";
import { safely } from "../lib/messages.js";
import { shorten, storyTitle } from "../story/titles.js";
import { textOf } from "../story/tree.js";

const TITLE = 60; // characters

/** A row of the trash, with a button that takes it out. */
function row(title, restore) {
  const button = create("button", { type: "button", textContent: "Restore", ariaLabel: `Restore ${title}`, onclick: safely(restore) });
  return create("li", {}, create("span", {}, title), button);
}

/**
 * Show the trash of the panel with the stories, while it is open.
 * @param {import("./story_list.js").StoryList} storyList
 * @param {import("../desk/desk.js").Desk} desk
 */
export function listenToTrash(storyList, desk) {
  const part = find("#trash");
  const draw = async () => {
    if (!part.open) return;
    const stories = (await storyList.stories.trash()).map((story) =>
      row(storyTitle(story), async () => {
        await storyList.stories.restore(story);
        await storyList.list();
        part.open = false;
        find(`#story-list a[href="#${story.id}"]`)?.focus();
      }));
    const discarded = [...desk.tree.nodes.values()].filter((node) => node.discarded).reverse().map((node) =>
      row(shorten(textOf(node), TITLE), () => {
        part.open = false;
        find("#stories:modal")?.close(); // it would cover the text
        desk.visit(node);
      }));
    find("#deleted-stories").replaceChildren(...stories);
    find("#discarded").replaceChildren(...discarded);
    find("#trash-empty").hidden = stories.length + discarded.length > 0;
  };
  part.addEventListener("toggle", safely(draw));
  storyList.listed = draw;
}
