// @ts-check
// A conversation with an editor about a story.
//
// It is a list of turns {question, answers, chosen}; the next question follows the answer with the index `chosen`. An
// answer is {request, index, after, pieces, end, reason}, as in a node, but isn't in the tree.

import { textOf } from "./tree.js";
import { isCount, isObject, isText } from "./validation.js";

export const EDITOR = "You are a careful editor. Be concrete, and answer in a few sentences.";

const isAnswer = (value) =>
  isObject(value) && isText(value.text) && [value.index, value.after].every(isCount) &&
  [value.request, value.end].every((each) => each === undefined || isText(each));
const isTurn = (value) =>
  isObject(value) && isText(value.question) && Array.isArray(value.answers) && value.answers.every(isAnswer) && value.chosen in value.answers;

/** Whether this is a conversation as `toStored` returns it. */
export const isConversation = (value) => Array.isArray(value) && value.every(isTurn);

/** Convert a conversation for storing, and back. */
export const toStored = (turns) =>
  turns.map(({ answers, ...turn }) => ({
    ...turn,
    answers: answers.map((each) => ({ text: textOf(each), request: each.request, index: each.index, after: each.after, end: each.end })),
  }));
export const fromStored = (turns) =>
  turns.map(({ answers, ...turn }) => ({
    ...turn,
    answers: answers.map(({ text, ...each }) => ({ ...each, pieces: text ? [{ text, ids: null }] : [] })),
  }));

/**
 * Return the messages of a question for the chat template: system prompt, story, conversation, question.
 * @param {{ system: string, story: string, turns: any[], question: string }} conversation
 * @returns {{ role: string, content: string }[]}
 */
export function messages({ system, story, turns, question }) {
  const said = turns.flatMap((turn) => [
    { role: "user", content: turn.question },
    { role: "assistant", content: textOf(turn.answers[turn.chosen]).trim() },
  ]);
  const [first, ...others] = [...said, { role: "user", content: question }];
  const about = story ? `This is my story so far:\n\n${story}\n\nThat was my story. My question:\n\n${first.content}` : first.content;
  return [...(system.trim() ? [{ role: "system", content: system }] : []), { ...first, content: about }, ...others];
}

/** Fit a passage between two texts, with a space where two words would meet. */
export function fitted(before, passage, behind) {
  const start = /[^\s([“‘«—]$/u.test(before) ? " " : "";
  const end = /^[\p{L}\p{N}“‘«(]/u.test(behind) ? " " : "";
  return start + passage.trim() + end;
}
