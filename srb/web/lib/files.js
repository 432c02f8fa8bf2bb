// @ts-check
// Files and the clipboard.

import { create } from "./dom.js";

export function download(name, file) {
  const link = create("a", { href: URL.createObjectURL(file), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

export async function readJson(file) {
  try {
    return JSON.parse(await file.text());
  } catch {
    throw new Error(`${file.name} is not JSON`);
  }
}

export async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const box = create("textarea", { value: text }); // there is no clipboard over plain HTTP
  document.body.append(box);
  box.select();
  const copied = document.execCommand("copy");
  box.remove();
  if (!copied) throw new Error("This browser doesn't allow the page to copy. Select the text and copy it.");
}
