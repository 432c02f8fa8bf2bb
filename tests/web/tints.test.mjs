import assert from "node:assert/strict";
import test from "node:test";

import { authors, by, marksOf, packedMarks, setMarks } from "../../srb/web/desk/tints.js";
import { ownMark, packMarks } from "../../srb/web/story/authorship.js";
import { EditorState } from "../../srb/web/vendor/codemirror.js";

let seed = 7;
const draw = (count) => (seed = (seed * 16807) % 2147483647) % count;
const drawMarks = (count) => Array.from({ length: count }, () => "wmcp"[draw(4)]).join("");

test("ranges of who wrote what are as a string of marks that is cut and joined like the text", () => {
  for (let round = 0; round < 100; round++) {
    let marks = Array.from({ length: 20 }, () => drawMarks(1).repeat(1 + draw(5))).join("");
    let state = EditorState.create({ doc: "x".repeat(marks.length), extensions: [authors] });
    state = state.update({ effects: setMarks.of(marks) }).state;
    for (let k = 0; k < 20; k++) {
      const from = draw(marks.length + 1);
      const to = Math.min(marks.length, from + draw(3) * draw(5));
      const insert = "y".repeat(draw(5));
      const known = [undefined, drawMarks(1), drawMarks(insert.length)][draw(3)];
      const own = known || ownMark(marks.slice(Math.max(0, from - 1), from), marks.slice(from, to), marks.slice(to, to + 1));
      state = state.update({ changes: { from, to, insert }, annotations: known ? by.of(known) : [] }).state;
      marks = marks.slice(0, from) + (own.length > 1 ? own : own.repeat(insert.length)) + marks.slice(to);
      assert.equal(marksOf(state), marks);
      assert.equal(packedMarks(state), packMarks(marks));
    }
  }
});
