// What older pages have kept in another way. Pure.
//
// They asked questions in the tree. A question was a typed node that had its words as its `label`, and as its text what the chat
// template made of them. Such a conversation is read as a text now. A draft of a question had a place of its own.

import { ROOT } from "./tree.js";

const isQuestion = (node) => Boolean(node.typed && node.label);
const isQuestionDraft = ([place]) => place.startsWith("ask ");

// Makes texts of the questions among these nodes, which are `asked` then. Tokens that stood for a whole text with a template in it are
// forgotten. Returns the nodes that are others now.
export function plain(nodes) {
  const questions = nodes.filter(isQuestion);
  if (!questions.length) return [];
  const known = new Map(nodes.map((node) => [node.id, node]));
  const isBehindOne = ({ parent }) => known.has(parent) && (isQuestion(known.get(parent)) || isBehindOne(known.get(parent)));
  const wholes = nodes.filter((node) => node.whole && isBehindOne(node));
  for (const node of wholes) Object.assign(node, { whole: undefined, pieces: node.pieces.map((piece) => ({ ...piece, ids: null })) });
  for (const node of questions) {
    const text = `${node.parent === ROOT ? "" : "\n\n"}${node.label}\n\n`;
    Object.assign(node, { pieces: [{ text, ids: null }], label: undefined, whole: undefined, asked: true });
  }
  return [...new Set([...questions, ...wholes])];
}

// Drafts as [place, text] without those of questions, and these as one: {drafts, question}.
export function withoutQuestions(drafts) {
  const questions = drafts.filter(isQuestionDraft).map(([, text]) => text);
  return { drafts: drafts.filter((each) => !isQuestionDraft(each)), question: questions.join("\n\n") };
}
