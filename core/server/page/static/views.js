// The views of the page, one at a time, by the part of the address behind the #.

import { byId } from "./dom.js";

const NAMES = { chat: "Chat", status: "Status", models: "Models", usage: "Usage" };

/** Show the view that the address says, now and when it changes; `shown(name)` is told. */
export function views(shown) {
  function show() {
    const asked = location.hash.slice(1);
    const name = Object.hasOwn(NAMES, asked) ? asked : "chat";
    document.body.dataset.view = name;
    document.title = name === "chat" ? "Enginebay" : `${NAMES[name]} · Enginebay`;
    for (const link of document.querySelectorAll("nav a")) {
      link.ariaCurrent = link.hash === `#${name}` ? "page" : null;
    }
    shown(name);
  }
  addEventListener("hashchange", () => {
    show();
    (byId(location.hash.slice(1)) ?? byId("chat")).focus({ preventScroll: true });
  });
  show();
}
