// The requests that are being answered, and cancelling them.

import { call, json } from "../api.js";
import { byId, h, setText } from "../dom.js";

/** The list of /v1/requests: one's own, or all of them for admins. */
export class RequestList {
  constructor({ failed }) {
    this.failed = failed;
    this.rows = new Map();
  }

  /** Ask for them when there are some, or were. */
  async refresh({ models }) {
    const some = models.some(({ running, waiting }) => running + waiting > 0);
    if (some || this.rows.size) this.show((await json("v1/requests")).data);
  }

  show(requests) {
    const ids = new Set(requests.map((request) => request.id));
    for (const [id, row] of this.rows) {
      if (ids.has(id)) continue;
      row.element.remove();
      this.rows.delete(id);
    }
    for (const request of requests) {
      if (!this.rows.has(request.id)) {
        this.rows.set(request.id, new Row(request, this.failed));
        byId("requests").append(this.rows.get(request.id).element);
      }
      this.rows.get(request.id).show(request);
    }
    byId("requests-section").hidden = !requests.length;
  }
}

class Row {
  constructor({ id, model, route }, failed) {
    this.id = id;
    this.failed = failed;
    this.state = h("span", { class: "state" });
    this.facts = h("p", { class: "hint" });
    this.button = h(
      "button",
      { type: "button", "aria-label": `Cancel ${id}`, onclick: () => this.#cancel() },
      "Cancel",
    );
    const name = h("h3", { title: id }, model ?? route);
    this.element = h(
      "li",
      { class: "card" },
      h("div", { class: "row" }, name, this.state),
      h("div", { class: "row" }, this.facts, this.button),
    );
  }

  show(request) {
    const { state, position } = request;
    this.element.dataset.state = state === "running" ? "ready" : state;
    setText(this.state, position === null ? state : `${state}, ${position} before it`);
    setText(this.facts, facts(request));
  }

  async #cancel() {
    this.button.disabled = true;
    try {
      await call(`v1/requests/${encodeURIComponent(this.id)}/cancel`, { method: "POST" });
    } catch (error) {
      if (error.status !== 404) this.failed(error); // it has ended by itself meanwhile
    }
  }
}

function facts({ key, route, age_s: age, prompt_tokens: prompt, completion_tokens: done, n }) {
  return [
    key,
    route,
    `${age < 10 ? age.toFixed(1) : age.toFixed(0)} s`,
    prompt ? `prompt ${prompt}` : null,
    done ? `answer ${done}` : null,
    n > 1 ? `${n} choices` : null,
  ]
    .filter(Boolean)
    .join(" · ");
}
