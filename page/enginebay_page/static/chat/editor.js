// The text box in which a message is edited.

import { h } from "../dom.js";

/** A form for `text`; `done` gets the new text, or null when nothing is to change. */
export function editor(text, label, done) {
  const box = h("textarea", { value: text, rows: 3, "aria-label": "Edit the message" });
  const form = h(
    "form",
    { class: "editor" },
    box,
    h(
      "div",
      { class: "row" },
      h("button", { type: "submit", class: "primary" }, label),
      h("button", { type: "button", onclick: () => done(null) }, "Cancel"),
    ),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    done(box.value);
  });
  form.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    done(null);
  });
  return form;
}
