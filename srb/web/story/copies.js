// @ts-check
// Copies of the server's stories, in a database of this browser. With them a page opens while the server can't be
// reached. What others do meanwhile comes after the copy's last change, as at any other time.

/** @type {Promise<IDBDatabase> | null} */
let opening = null;

/** Resolve to the result of a database's request. */
export const finished = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

/** @param {IDBTransactionMode} mode */
async function parts(mode) {
  if (!opening) {
    const request = indexedDB.open("srb-copies", 1);
    request.onupgradeneeded = () => request.result.createObjectStore("parts", { keyPath: ["story", "part"] });
    opening = finished(request);
  }
  return (await opening).transaction("parts", mode).objectStore("parts");
}

/** The keys of all that there is of a story, in one object store. */
export const allOf = (story) => IDBKeyRange.bound([story], [story, []]);

/** Add nodes to the copy of a story, which may have some of them, unless another tab has added something later. */
export async function keepCopy(story, nodes) {
  const store = await parts("readwrite");
  const put = (part, value, known) => known?.value.change > value.change || store.put({ story: story.id, part, value });
  const before = await finished(store.get([story.id, "story"]));
  for (const node of nodes.filter(({ change }) => !(change <= before?.value.change)))
    store.get([story.id, node.id]).onsuccess = (/** @type {any} */ { target }) => put(node.id, node, target.result);
  put("story", story, before);
}

/** @returns {Promise<any>} as the server would answer; undefined if there is none */
export async function readCopy(id) {
  const all = await finished((await parts("readonly")).getAll(allOf(id)));
  const story = all.find(({ part }) => part === "story")?.value;
  return story && { ...story, nodes: all.flatMap(({ part, value }) => (part === "story" ? [] : [value])) };
}

/** List the stories that have copies, the last changed first. */
export async function listCopies() {
  const all = await finished((await parts("readonly")).getAll());
  return all.flatMap(({ part, value }) => (part === "story" ? [value] : [])).sort((a, b) => b.changed - a.changed);
}

export async function dropCopy(id) {
  (await parts("readwrite")).delete(allOf(id));
}
