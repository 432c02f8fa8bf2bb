// Keys that do what buttons do, wherever no text is being typed.

const find = (selector) => document.querySelector(selector);
const texts = () => [...document.querySelectorAll(".card .text")];
const press = (button) => button && !button.disabled && button.click();

// The alternative that has the keyboard.
const at = () => document.activeElement.closest(".card")?.querySelector(".text");

const act = (name) => press(at()?.closest(".card").querySelector(`[value=${name}]`));

function walk(by) {
  const all = texts();
  const k = all.indexOf(at());
  all[Math.max(0, Math.min(all.length - 1, k < 0 ? 0 : k + by))]?.focus();
}

const keep = (number) => press(texts()[number - 1]?.closest(".card").querySelector("[value=keep]"));

// [keys, as they are written, what they do, the action]
const KEYS = [
  ["123456789", "1 … 9", "keep that alternative", (key) => keep(Number(key))],
  ["j", "J", "go to the next alternative", () => walk(1)],
  ["k", "K", "go to the one before", () => walk(-1)],
  ["m", "M", "more like this one", () => act("more")],
  ["c", "C", "continue this one", () => act("continue")],
  ["d", "D", "discard this one", () => act("discard")],
  ["e", "E", "edit the text", () => find("#story").focus()],
  ["g", "G", "generate", () => press(find("#generate"))],
  ["s", "S", "stop", () => press(find("#stop"))],
  ["u", "U", "undo", () => press(find("#undo"))],
  ["x", "X", "explore what may come next", () => press(find("#explore"))],
  ["t", "T", "the story and its tree", () => press(find("#open-shelf"))],
  [",", ",", "the settings", () => press(find("#open-options"))],
  ["?", "?", "these keys", () => press(find("#open-keys"))],
];
const OTHERS = [
  ["Esc", "leave the text you type, for these keys; close what is open"],
  ["Ctrl Enter", "generate, also while you type"],
  ["← →", "in an alternative: look at its words, one by one; Enter goes into the list"],
];

const isTyped = (element) => element.matches("textarea, select, input:not([type=checkbox], [type=radio], [type=range], [type=file])");

// Whether what had the keyboard is gone, or can't have it any more.
export function isLost() {
  const at = document.activeElement;
  return at === document.body || at.disabled || at.hidden;
}

export function listenToKeys(dialog) {
  for (const [keys, does] of [...KEYS.map((each) => each.slice(1, 3)), ...OTHERS]) {
    const term = document.createElement("dt");
    term.append(Object.assign(document.createElement("kbd"), { textContent: keys }));
    dialog.querySelector("dl").append(term, Object.assign(document.createElement("dd"), { textContent: does }));
  }
  find("#open-keys").addEventListener("click", () => dialog.showModal());
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || find("dialog:modal")) return;
    if (event.key === "Escape" && event.target.id === "story") return texts()[0] ? texts()[0].focus() : event.target.blur();
    const found = KEYS.find(([keys]) => event.key.length === 1 && keys.includes(event.key.toLowerCase()));
    if (!found || isTyped(event.target)) return;
    event.preventDefault();
    found.at(-1)(event.key);
  });
}
