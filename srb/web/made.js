// Elements of the page that are made by a program.

// An element with these properties and children, which may be texts.
export function made(tag, fields, ...children) {
  const element = Object.assign(document.createElement(tag), fields);
  element.append(...children);
  return element;
}
