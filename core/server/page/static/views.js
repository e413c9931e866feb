// The views of the page, one at a time, by the part of the address behind the #.

import { byId } from "./dom.js";

const NAMES = { chat: "Chat", status: "Status", models: "Models", usage: "Usage" };

/** Show the view that the address says, now and when it changes; `shown(name)` is told. */
export function views(shown) {
  function show() {
    const asked = location.hash.slice(1).split("?")[0];
    const name = Object.hasOwn(NAMES, asked) ? asked : "chat";
    document.body.dataset.view = name;
    document.title = name === "chat" ? "Enginebay" : `${NAMES[name]} · Enginebay`;
    for (const link of document.querySelectorAll("nav a")) {
      link.ariaCurrent = link.hash === `#${name}` ? "page" : null;
    }
    shown(name);
    return asked === name;
  }
  addEventListener("hashchange", () => {
    if (show()) byId(document.body.dataset.view).focus({ preventScroll: true });
  });
  show();
}
