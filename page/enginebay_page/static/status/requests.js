// The requests that are being answered, and cancelling them.

import { call, json } from "../api.js";
import { byId, h, setText } from "../dom.js";

/** The list of /v1/requests: one's own, or all of them for admins. */
export class RequestList {
  constructor() {
    this.rows = new Map();
  }

  /** Ask for them when there are some, or were. */
  async refresh({ models }) {
    const some = models.some(
      ({ state, running, waiting }) => running + waiting > 0 || state === "loading",
    );
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
        this.rows.set(request.id, new Row(request));
        byId("requests").append(this.rows.get(request.id).element);
      }
      this.rows.get(request.id).show(request);
    }
    byId("requests-section").hidden = !requests.length;
  }
}

class Row {
  constructor({ id, model, route }) {
    this.id = id;
    this.state = h("span", { class: "state" });
    this.facts = h("p", { class: "hint" });
    this.button = h(
      "button",
      { type: "button", "aria-label": `Cancel ${id}`, onclick: () => this.#cancel() },
      "Cancel",
    );
    this.error = h("p", { class: "error", role: "alert" });
    const name = h("h3", { title: id }, model ?? route);
    this.element = h(
      "li",
      { class: "card" },
      h("div", { class: "row" }, name, this.state),
      h("div", { class: "row" }, this.facts, this.button),
      this.error,
    );
  }

  show(request) {
    const { state, position } = request;
    this.element.dataset.state = state === "running" ? "ready" : state;
    setText(this.state, position === null ? state : `${state}, ${position} ahead`);
    setText(this.facts, facts(request));
  }

  async #cancel() {
    this.button.disabled = true;
    try {
      await call(`v1/requests/${encodeURIComponent(this.id)}/cancel`, { method: "POST" });
    } catch (error) {
      if (error.status === 404) return; // it has ended by itself meanwhile
      setText(this.error, error.message);
      this.button.disabled = false;
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
