// CodeMirror's styles as constructed style sheets: the page's policy allows no <style> elements. style-mod constructs
// them only for shadow roots, which have no head.

import { StyleModule as Base } from "./node_modules/style-mod/src/style-mod.js";

const root = {
  ownerDocument: globalThis.document,
  get adoptedStyleSheets() {
    return document.adoptedStyleSheets;
  },
  set adoptedStyleSheets(sheets) {
    document.adoptedStyleSheets = sheets;
  },
};

export class StyleModule extends Base {
  static mount(_, modules) {
    super.mount(root, modules);
  }
}
