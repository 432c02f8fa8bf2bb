// @ts-check
// A service worker: while the server can't be reached, it answers for it with the page's own files, as they were when
// a page last began with them. It has no answers of the API.

const worker = /** @type {any} */ (globalThis);
const { scope } = worker.registration;
const CACHE = "srb-page";

const isPage = (url) => url === scope || url === `${scope}openapi.json` || url.startsWith(`${scope}web/`);

const withoutQuery = (url) => url.split(/[?#]/)[0];

/** Keep the files that a page has begun with, from the browser's cache, instead of earlier ones. */
async function keep(urls) {
  const cache = await caches.open(CACHE);
  const wanted = new Set([scope, ...urls.map(withoutQuery).filter(isPage)]);
  const store = async (url) => {
    const [known, now] = await Promise.all([cache.match(url), fetch(url, { cache: "force-cache" })]);
    if (now.ok && known?.headers.get("ETag") !== now.headers.get("ETag")) await cache.put(url, now);
  };
  await Promise.all([...wanted].map(store));
  for (const { url } of await cache.keys()) if (!wanted.has(url)) await cache.delete(url);
}

async function answer(request) {
  if (request.mode === "navigate") await navigator.locks.request("srb-rest", () => {}); // nobody types: early.js
  const response = await fetch(request).catch((error) => error);
  if (response instanceof Response && response.status < 500) return response;
  const kept = await caches.match(withoutQuery(request.url));
  if (kept || response instanceof Response) return kept ?? response;
  throw response;
}

worker.addEventListener("install", () => worker.skipWaiting());
worker.addEventListener("message", (event) => event.waitUntil(keep(event.data)));
worker.addEventListener("fetch", (event) => {
  const { request } = event;
  if (request.method === "GET" && isPage(withoutQuery(request.url))) event.respondWith(answer(request));
});
