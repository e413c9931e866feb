// The dialog for the API key.

import { byId, setText } from "./dom.js";
import { apiKey } from "./store.js";

const WANTED =
  "This server requires an API key: one of those shown on its first start, " +
  "or one created with `enginebay keys add NAME`.";

/** Wire the dialog; `changed` is called when another key is to be used. Returns how to open it. */
export function keyDialog(changed) {
  const dialog = byId("key-dialog");
  const box = byId("key");

  function open(reason = "") {
    if (dialog.open) return;
    setText(byId("key-reason"), reason && !apiKey.value ? WANTED : reason);
    box.value = "";
    box.placeholder = apiKey.value ? "a key is in use" : "";
    byId("key-remember").checked = apiKey.remembered;
    dialog.returnValue = "";
    dialog.showModal();
  }

  dialog.addEventListener("close", () => {
    const key = box.value.trim();
    box.value = "";
    if (dialog.returnValue === "save" && key) apiKey.set(key, byId("key-remember").checked);
    else if (dialog.returnValue === "forget") apiKey.forget();
    else return;
    changed();
  });
  for (const button of document.querySelectorAll("[data-asks-for-key]")) {
    button.addEventListener("click", () => open());
  }
  return open;
}
