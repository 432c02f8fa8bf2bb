// What an editor is told and what is kept of it: conversation.js.

import assert from "node:assert/strict";
import { test } from "node:test";
import { fitted, fromStored, isConversation, messages, toStored } from "../../srb/web/story/conversation.js";

const answer = (text, index = 0) => ({ request: "r", index, after: 7, end: "came to its end", pieces: [{ text, ids: [1] }] });
const turns = [
  { question: "Who is Ada?", chosen: 1, answers: [answer("A cat.", 0), answer(" The keeper. ", 1)] },
  { question: "Why?", chosen: 0, answers: [answer("Nobody knows.")] },
];

test("the story comes before the first question, and chosen answers after theirs", () => {
  const all = messages({ system: "An editor.", story: "Once.", turns, question: "And then?" });
  assert.deepEqual(all.map(({ role }) => role), ["system", "user", "assistant", "user", "assistant", "user"]);
  assert.match(all[1].content, /Once\.[^]*Who is Ada\?$/);
  assert.deepEqual(all.slice(2).map(({ content }) => content), ["The keeper.", "Why?", "Nobody knows.", "And then?"]);
  assert.deepEqual(messages({ system: " ", story: "", turns: [], question: "Who?" }), [{ role: "user", content: "Who?" }]);
});

test("a stored conversation is read again, and nothing else is one", () => {
  const said = toStored(turns);
  assert.ok(isConversation(said));
  assert.deepEqual(toStored(fromStored(said)), said);
  for (const other of [null, {}, [{}], [{ ...said[1], chosen: 1 }], [{ ...said[1], answers: [{ text: 7 }] }]]) assert.ok(!isConversation(other));
});

test("a passage has a space where two words would meet", () => {
  assert.equal(fitted("Once", " upon a ", "time"), " upon a ");
  assert.equal(fitted("", "Once", ""), "Once");
  assert.equal(fitted("“", "Once", ", he said"), "Once");
  assert.equal(fitted("It rained. ", "Ada slept.", "\nThen"), "Ada slept.");
});
