// Elements without markup: text that models and servers send only ever becomes text nodes.

import { shortened } from "./shortened.js";

/** An element. Props are properties, `on...` listeners, else attributes; null and false are left out. */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name.includes("-") || !(name in element)) element.setAttribute(name, value);
    else element[name] = value;
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) element.append(child);
  }
  return element;
}

/** An element of a drawing, with these attributes. */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.flat());
  return element;
}

export const byId = (id) => document.getElementById(id);

/** Show this text; leave the node alone when it does already, so that nothing is announced twice. */
export function setText(element, text) {
  const shown = shortened(text);
  if (element.textContent !== shown) element.textContent = shown;
}

/** A button that copies what `text()` is when it is pressed. */
export function copyButton(text) {
  const button = h("button", { type: "button", class: "quiet", onclick: copy }, "Copy");
  async function copy() {
    try {
      await navigator.clipboard.writeText(text());
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not allowed here"; // browsers want https, or localhost
    }
    setTimeout(() => (button.textContent = "Copy"), 1500);
  }
  return button;
}
