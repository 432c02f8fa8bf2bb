// What the page uses of CodeMirror: `npm run bundle --prefix tests/web` makes codemirror.js of it. TypeScript finds the
// types here.

export { deleteCharBackwardStrict, insertNewline, standardKeymap } from "@codemirror/commands";
export { diff } from "@codemirror/merge";
export { Annotation, type AnnotationType, ChangeSet, EditorState, StateEffect, type StateEffectType, StateField, type Transaction } from "@codemirror/state";
export { Decoration, EditorView, keymap, placeholder } from "@codemirror/view";
