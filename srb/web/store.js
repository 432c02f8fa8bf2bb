// The tree and the page's fields in the browser's IndexedDB: a record per node, so that saving costs what has changed.

const finished = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

export class Store {
  // Raises what the browser says where it keeps nothing, as in some private windows.
  static async open() {
    const opening = indexedDB.open("srb", 1);
    opening.onupgradeneeded = () => {
      opening.result.createObjectStore("nodes", { keyPath: "id" });
      opening.result.createObjectStore("page");
    };
    return new Store(await finished(opening));
  }

  constructor(database) {
    this.database = database;
  }

  async load() {
    const transaction = this.database.transaction(["nodes", "page"]);
    const [nodes, page] = await Promise.all([
      finished(transaction.objectStore("nodes").getAll()),
      finished(transaction.objectStore("page").get("page")),
    ]);
    return { nodes, page: page ?? {} };
  }

  save(nodes, page) {
    const transaction = this.database.transaction(["nodes", "page"], "readwrite");
    for (const node of nodes) transaction.objectStore("nodes").put(node);
    transaction.objectStore("page").put(page, "page");
    transaction.commit(); // now, as the page may be about to close
    return new Promise((resolve, reject) => {
      transaction.oncomplete = resolve;
      transaction.onabort = () => reject(transaction.error);
    });
  }

  clear() {
    const transaction = this.database.transaction(["nodes", "page"], "readwrite");
    transaction.objectStore("nodes").clear();
    return finished(transaction.objectStore("page").clear());
  }
}
