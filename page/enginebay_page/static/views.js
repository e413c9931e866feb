// The views of the page, one at a time, by the part of the address behind the #.

import { byId } from "./dom.js";

const NAMES = { chat: "Chat", status: "Status", models: "Models", usage: "Usage" };

/**
 * Show the view that the address says, or the one with the element that it names, now and when it
 * changes; `shown(name)` is told.
 */
export function views(shown) {
  const target = () => byId(location.hash.slice(1));
  function show() {
    const name = target()?.closest("main > section")?.id ?? "chat";
    document.body.dataset.view = name;
    document.title = name === "chat" ? "Enginebay" : `${NAMES[name]} · Enginebay`;
    for (const link of document.querySelectorAll("nav a")) {
      link.ariaCurrent = link.hash === `#${name}` ? "page" : null;
    }
    shown(name);
  }
  addEventListener("hashchange", () => {
    show();
    const element = target() ?? byId("chat");
    element.focus({ preventScroll: Object.hasOwn(NAMES, element.id) });
  });
  show();
}
