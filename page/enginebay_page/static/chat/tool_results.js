// Results of tool calls, typed in by the user, since no tool runs here.

import { h } from "../dom.js";
import { shortened } from "../shortened.js";

/** A form with a box for each call; `send` gets the results, in the order of the calls. */
export function resultForm(calls, send) {
  const boxes = calls.map((call) => h("textarea", { rows: 1, required: true, "data-call": call.id }));
  const form = h(
    "form",
    { class: "results" },
    calls.map((call, at) => h("label", {}, `Result of ${shortened(call.name)} `, boxes[at])),
    h("button", { type: "submit" }, calls.length > 1 ? "Send results" : "Send result"),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    form.remove();
    send(boxes.map((box) => box.value));
  });
  return form;
}
