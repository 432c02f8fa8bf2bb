// Where a story is kept: nowhere, or in the browser. story_store.js keeps it on the server.

const finished = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

// Keeps nothing, where the browser lets it. What the others do, too:
export class Store {
  // Whether others see it as well. Such a store adds the alternatives of a request itself, and texts only grow below others.
  isShared = false;

  // The nodes, and what else is on the page: {nodes, page}.
  async load() {
    return { nodes: [], page: {} };
  }

  // Adds a node of these fields; returns it, with an id if the store gives those.
  async add(fields) {
    return fields;
  }

  // Keeps nodes that have changed, and what else is on the page.
  async save(_nodes, _page) {}

  // Removes the story.
  async clear() {}

  // The fields of a request that goes on from a node.
  place(tree, id) {
    return { prompt: tree.prompt(id) };
  }

  // Goes on telling what others do: listener.changed(node), renamed(title), deleted().
  async watch(_listener) {}
}

// In the browser's IndexedDB: a record per node, so that saving costs what has changed.
export class BrowserStore extends Store {
  // Raises what the browser says where it keeps nothing, as in some private windows.
  static async open() {
    const opening = indexedDB.open("srb", 1);
    opening.onupgradeneeded = () => {
      opening.result.createObjectStore("nodes", { keyPath: "id" });
      opening.result.createObjectStore("page");
    };
    return new BrowserStore(await finished(opening));
  }

  constructor(database) {
    super();
    this.database = database;
  }

  // name: of what the page showed, which each of the server's stories has its own of.
  async load(name = "page") {
    const transaction = this.database.transaction(["nodes", "page"]);
    const [nodes, page] = await Promise.all([
      finished(transaction.objectStore("nodes").getAll()),
      finished(transaction.objectStore("page").get(name)),
    ]);
    return { nodes, page: page ?? {} };
  }

  save(nodes, page, name = "page") {
    const transaction = this.database.transaction(["nodes", "page"], "readwrite");
    for (const node of nodes) transaction.objectStore("nodes").put(node);
    transaction.objectStore("page").put(page, name);
    transaction.commit(); // now, as the page may be about to close
    return new Promise((resolve, reject) => {
      transaction.oncomplete = resolve;
      transaction.onabort = () => reject(transaction.error);
    });
  }

  clear() {
    const transaction = this.database.transaction(["nodes", "page"], "readwrite");
    transaction.objectStore("nodes").clear();
    return finished(transaction.objectStore("page").delete("page"));
  }
}
