// What the status line says of requests: of those that go on; when none does, of those that have just ended. Pure.

export const count = (number) => (number === 1 ? "One alternative" : `${number} alternatives`);

const sum = (numbers) => numbers.reduce((total, each) => total + each, 0);

// going, over: generations, and readings of a text, which have isReading.
export function status(going, over) {
  if (going.some((each) => each.isLost)) return "The connection was lost; the page tries again. Stop gives up.";
  const running = sum(going.map((each) => (each.hasBegun ? each.running.size : 0)));
  if (going.some((each) => each.isBridge)) return "Ways to what stands behind are being tried. They appear when all can be compared.";
  if (running) return `${count(running)} being written.`;
  if (going.some((each) => each.isReading)) return "Reading the text …";
  if (going.length) return "Asked for; it has not begun yet.";
  if (over.some((each) => each.isLost || each.isGone)) return "The connection was lost. What had arrived is here.";
  if (over.some((each) => each.isStopped)) return "Stopped.";
  const done = over.filter((each) => each.done);
  return done.length ? `Done: ${count(sum(done.map((each) => each.nodes.length))).toLowerCase()}.` : "";
}
