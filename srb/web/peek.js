// A look at one token: the likeliest tokens at its place, each of which can be chosen to fork there.

const REST_MILLISECONDS = 120; // a pointer that crosses the text on its way to a button opens nothing
const LEAVE_MILLISECONDS = 200;

export const visible = (text) => text.replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "(nothing)";
export const percent = (p) => (p < 0.001 ? "< 0.1 %" : `${(p * 100).toFixed(p < 0.1 ? 1 : 0)} %`);

export class Peek {
  // choose(node, k, choice) forks. Tokens are the elements with data-k inside those with data-node.
  constructor(element, desk, choose) {
    this.element = element;
    this.desk = desk;
    this.choose = choose;
    this.token = null;
    // Not where text comes under a pointer that rests, as pointerover does.
    for (const name of ["pointermove", "pointerdown"]) document.addEventListener(name, (event) => this.#point(event));
    document.addEventListener("focusin", (event) => this.#focus(event.target));
    document.addEventListener("keydown", (event) => this.#key(event));
    document.addEventListener("scroll", () => this.#hide(), { capture: true, passive: true });
  }

  #point({ target, type }) {
    const token = target.closest?.("[data-k]");
    const pointed = token ?? target.closest?.("#peek") ?? null;
    if (pointed === this.pointed && type === "pointermove") return;
    this.pointed = pointed;
    clearTimeout(this.resting);
    if (!pointed && type === "pointerdown") return this.#hide();
    if (token) this.resting = setTimeout(() => this.#show(token), type === "pointerdown" ? 0 : REST_MILLISECONDS);
    else if (this.token && !pointed && !this.#holdsFocus()) this.resting = setTimeout(() => this.#hide(), LEAVE_MILLISECONDS);
  }

  #focus(target) {
    if (target.matches("[data-k]")) this.#show(target);
    else if (!target.closest("#peek")) this.#hide();
  }

  #holdsFocus() {
    return this.element.contains(document.activeElement) || document.activeElement === this.token;
  }

  // Arrows walk the tokens of a text, Enter goes into the list of a token, Escape back.
  #key(event) {
    const at = document.activeElement;
    if (at.matches(".text")) {
      const first = at.querySelector("[data-k]");
      if (event.key === "ArrowRight" && first) return this.#move(event, first);
    } else if (at.matches("[data-k]")) {
      if (event.key === "ArrowRight") this.#move(event, next(at, "nextElementSibling"));
      if (event.key === "ArrowLeft") this.#move(event, next(at, "previousElementSibling"));
      if (event.key === "Enter" || event.key === "ArrowDown") {
        this.#show(at);
        this.#move(event, this.element.querySelector("button"));
      }
    } else if (this.element.contains(at)) {
      const row = at.parentElement;
      if (event.key === "ArrowDown") this.#move(event, row.nextElementSibling?.querySelector("button"));
      if (event.key === "ArrowUp") this.#move(event, row.previousElementSibling?.querySelector("button") ?? this.token);
    }
    if (event.key === "Escape") this.#hide();
  }

  #move(event, to) {
    event.preventDefault();
    to?.focus();
  }

  #show(token) {
    if (this.token === token) return;
    this.#hide();
    const node = this.desk.tree.nodes.get(token.closest("[data-node]").dataset.node);
    const k = Number(token.dataset.k);
    const piece = node.pieces[k];
    this.token = token;
    token.classList.add("looked-at");
    const title = document.createElement("p");
    title.textContent = `${visible(piece.text)} had ${percent(piece.p)}. Instead:`;
    const list = document.createElement("ul");
    for (const choice of piece.top) list.append(this.#row(node, k, choice, choice.id === piece.ids?.at(-1)));
    this.element.replaceChildren(title, list);
    this.element.showPopover();
    const place = [...token.getClientRects()].at(-1); // where its word is, if its space ends the line before
    const { width, height } = this.element.getBoundingClientRect();
    const above = place.top - height >= 0; // below are the words that are read next, and the buttons
    this.element.style.left = `${Math.max(4, Math.min(place.left, innerWidth - width - 4))}px`;
    this.element.style.top = `${above ? place.top - height : Math.min(place.bottom, innerHeight - height)}px`;
  }

  #row(node, k, choice, isTaken) {
    const button = document.createElement("button");
    button.type = "button";
    const chance = document.createElement("span");
    chance.textContent = percent(choice.p);
    button.append(visible(choice.text), " ", chance);
    if (isTaken) button.className = "taken";
    button.addEventListener("click", () => {
      this.#hide();
      this.choose(node, k, choice);
    });
    const row = document.createElement("li");
    row.append(button);
    return row;
  }

  #hide() {
    clearTimeout(this.resting);
    this.pointed = undefined;
    if (!this.token) return;
    // What is hidden loses the keyboard only with the next frame; whoever asks until then must not find it there.
    if (this.element.contains(document.activeElement)) this.token.focus({ preventScroll: true });
    this.token.classList.remove("looked-at");
    this.token = null;
    this.element.hidePopover();
  }
}

function next(token, direction) {
  let at = token[direction];
  while (at && !at.matches("[data-k]")) at = at[direction];
  return at;
}
