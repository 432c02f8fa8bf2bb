// The server's stories: which one is open, which the address names behind its #, and what can be done with them.

import { stories } from "./api.js";
import { complain, safely, tell } from "./say.js";
import { StoryStore, upload } from "./story_store.js";

const find = (selector) => document.querySelector(selector);
const titleOf = (story) => story.title || "(no title)";

export const open = (story) => (location.hash = story.id);

export const make = (title = "", nodes = []) => upload(title, nodes).then(open);

// Opens the story that the address names, or the one that was changed last.
export async function openShelf(browser) {
  let { data } = await stories();
  if (!data.length) data = [await upload("", [])];
  const named = location.hash.slice(1);
  const story = data.find(({ id }) => id === named) ?? data[0];
  if (named && story.id !== named) complain(new Error("That story isn't here any more. This one was changed last."));
  history.replaceState(null, "", `#${story.id}`);
  addEventListener("hashchange", () => location.reload());

  const store = new StoryStore(story, browser);
  find("#stories").hidden = false;
  find("#forget").textContent = "Delete this story";
  find("#rename").addEventListener("click", safely(async () => {
    const title = prompt("What is the story called?", store.story.title);
    if (title === null) return;
    await store.rename(title);
    await list(store);
  }));
  const { nodes } = await browser.load();
  find("#move").hidden = nodes.length === 0;
  find("#move").addEventListener("click", safely(async () => {
    tell("Moving …");
    const moved = await upload("From this browser", nodes);
    await browser.clear();
    open(moved);
  }));
  showTitle(story);
  return store;
}

// Lists the stories of the server.
export const list = async (store) => draw((await stories()).data, store);

export function showTitle(story) {
  find("#title-behind").hidden = false;
  find("#title").textContent = titleOf(story);
}

function draw(data, { story }) {
  showTitle(story);
  const link = (each) => {
    const element = document.createElement("a");
    element.href = `#${each.id}`;
    element.textContent = titleOf(each);
    if (each.id === story.id) element.setAttribute("aria-current", "true");
    const item = document.createElement("li");
    item.append(element);
    return item;
  };
  find("#story-list").replaceChildren(...data.map(link));
}
