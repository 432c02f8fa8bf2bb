// @ts-check
// The dialog that asks for the encoding of a text file.

import { create, find } from "../lib/dom.js";
import { telling } from "../story/text_file.js";

/**
 * Ask for an encoding, with a preview. Resolves to the text as it is read with it, or to null if there is to be none.
 * @param {import("../lib/api.js").ImportedDocument} found
 * @param {(encoding: string) => Promise<import("../lib/api.js").ImportedDocument>} read
 * @returns {Promise<import("../lib/api.js").ImportedDocument | null>}
 */
export function chooseEncoding(found, read) {
  const dialog = find("#encoding");
  const list = find("select", dialog);
  list.replaceChildren(...(found.encodings ?? []).map((name) => create("option", { textContent: name })));
  let chosen = Promise.resolve(found);
  const show = ({ text, left_out: leftOut }) => {
    find("blockquote", dialog).textContent = telling(text);
    find("[role=status]", dialog).textContent = leftOut.join("; ");
  };
  const fail = (error) => (find("[role=status]", dialog).textContent = error.message);
  list.onchange = () => {
    chosen = read(list.value);
    chosen.then(show).catch(fail);
  };
  show(found);
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => (dialog.onclose = () => resolve(dialog.returnValue ? chosen : null)));
}
