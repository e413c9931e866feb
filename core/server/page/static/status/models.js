// The models: what they are, what state they are in, loading and unloading them.

import { call, events } from "../api.js";
import { byId, h, setText } from "../dom.js";

const MIB = 2 ** 20;
const GIB = 2 ** 30;
const LOADED = ["ready", "loading", "draining"];

/** The cards of the models. */
export class ModelCards {
  constructor() {
    this.cards = new Map();
  }

  /**
   * Show the models of /v1/stats, with the `names` that each is also asked by; for admins with
   * buttons, and behind them those of the folder of models, of which only the `id` is known.
   */
  show(models, names, { admin, folder }) {
    const all = [...models, ...folder.map((id) => ({ id, state: "unloaded" }))];
    for (const [id, card] of this.cards) {
      if (all.some((model) => model.id === id)) continue;
      card.element.remove();
      this.cards.delete(id);
    }
    for (const model of all) {
      if (!this.cards.has(model.id)) {
        this.cards.set(model.id, new Card(model.id));
        byId("models").append(this.cards.get(model.id).element);
      }
      this.cards.get(model.id).show(model, names.get(model.id) ?? [], admin);
    }
    byId("models").dataset.empty = "No model is configured.";
  }
}

class Card {
  constructor(id) {
    this.id = id;
    this.failure = null; // of what was asked for here last
    this.following = false;
    this.state = h("span", { class: "state" });
    this.facts = h("p", { class: "hint" });
    this.names = h("p", { class: "chips" });
    this.progress = h("progress", { max: 1, hidden: true, "aria-label": `Loading ${id}` });
    this.error = h("p", { class: "error", role: "alert", hidden: true });
    this.load = this.#button("Load", () => this.#follow(events(`v1/models/${path(id)}/load`, {})));
    this.switch = this.#button("Switch", () => this.#follow(events("v1/model/load", { name: id })));
    this.switch.title = "Load it in place of the default model";
    this.unload = this.#button("Unload", () =>
      call(`v1/models/${path(id)}/unload`, { method: "POST", body: {} }),
    );
    this.element = h(
      "li",
      { class: "card" },
      h("div", { class: "row" }, h("h3", {}, id), this.state),
      h("div", { class: "row" }, this.facts, this.load, this.switch, this.unload),
      this.names,
      this.progress,
      this.error,
    );
  }

  show(model, names, admin) {
    const { state } = model;
    if (state !== this.element.dataset.state) this.failure = null;
    this.element.dataset.state = state;
    const loading = state === "loading";
    setText(this.state, loading ? `loading ${Math.round(model.progress * 100)} %` : state);
    setText(this.facts, facts(model));
    const chips = names.map((name) => h("span", {}, name));
    if (model.default) chips.unshift(h("span", { class: "mark" }, "default"));
    if (this.names.textContent !== chips.map((chip) => chip.textContent).join("")) {
      this.names.replaceChildren(...chips);
    }
    this.progress.hidden = !loading;
    if (loading) this.progress.value = model.progress;
    const words = this.failure ?? model.error;
    setText(this.error, words ?? "");
    this.error.hidden = !words;
    const why = state !== "failed" && !this.failure; // it was unloaded, say
    this.error.className = why ? "hint" : "error";
    const loaded = LOADED.includes(state);
    this.load.hidden = this.switch.hidden = !admin || loaded;
    this.unload.hidden = !admin || !loaded;
    this.load.disabled = this.switch.disabled = this.following;
    this.unload.disabled = state === "draining";
    setText(this.unload, loading ? "Stop" : "Unload");
    this.unload.ariaLabel = `${this.unload.textContent} ${this.id}`;
  }

  #button(label, act) {
    const onclick = () => {
      this.failure = null;
      act().catch((error) => (this.failure = error.message));
    };
    const props = { type: "button", hidden: true, "aria-label": `${label} ${this.id}`, onclick };
    return h("button", props, label);
  }

  /** Read the progress of a load to its end, for its error: /v1/stats has the progress, too. */
  async #follow(progress) {
    this.following = this.load.disabled = this.switch.disabled = true;
    try {
      for await (const _ of progress);
    } finally {
      this.following = false;
    }
  }
}

/** A model's name in a path, where it may hold slashes. */
const path = (id) => id.split("/").map(encodeURIComponent).join("/");

function facts(model) {
  const { backend, stage, state, context_length: context, memory, running, waiting } = model;
  const tokens = context >= 10_000 ? `${Math.round(context / 1024)}k` : context;
  return [
    backend,
    state === "loading" ? stage : null,
    context ? `${tokens} context` : null,
    memory?.gpu ? `${size(memory.gpu)} GPU` : null,
    memory?.ram ? `${size(memory.ram)} RAM` : null,
    running ? `${running} running` : null,
    waiting ? `${waiting} waiting` : null,
  ]
    .filter(Boolean)
    .join(" · ");
}

const size = (bytes) =>
  bytes < GIB ? `${Math.ceil(bytes / MIB)} MiB` : `${(bytes / GIB).toFixed(1)} GiB`;
