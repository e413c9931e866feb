// Panels above the conversation, of which one at most is open.

import { byId } from "../dom.js";

/** Wire the buttons that have `aria-controls`; `changing(change)` makes room. */
export function panels(changing) {
  const buttons = [...document.querySelectorAll(".panel-buttons [aria-controls]")];
  const panelOf = (button) => byId(button.getAttribute("aria-controls"));

  function open(wanted) {
    changing(() => {
      for (const button of buttons) {
        button.ariaExpanded = String(button === wanted);
        panelOf(button).hidden = button !== wanted;
      }
    });
  }

  for (const button of buttons) {
    button.ariaExpanded = "false";
    button.addEventListener("click", () => open(panelOf(button).hidden ? button : null));
    panelOf(button).addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || event.defaultPrevented) return;
      event.stopPropagation(); // which would stop an answer
      open(null);
      button.focus();
    });
  }
}
