// One model: what it is, what state it is in, loading and unloading it.

import { call, events, pathOf } from "../api.js";
import { h, setText } from "../dom.js";
import { size } from "../format.js";
import { Memory } from "./memory.js";

const LOADED = ["ready", "loading", "draining"];

/** The element of a model, kept up to date by `show(model, admin)`. */
export class ModelCard {
  constructor(id, { memory }) {
    this.id = id;
    this.failure = null; // of what was asked for here last
    this.following = false;
    this.state = h("span", { class: "state" });
    this.facts = h("p", { class: "hint" });
    this.names = h("p", { class: "chips" });
    this.progress = h("progress", { max: 1, hidden: true, "aria-label": `Loading ${id}` });
    this.error = h("p", { class: "error", role: "alert", hidden: true });
    this.load = this.#button("Load", () => this.#load({}));
    this.switch = this.#button("Switch", () => this.#follow(events("v1/model/load", { name: id })));
    this.switch.title = "Load it in place of the default model";
    this.unload = this.#button("Unload", () =>
      call(`v1/models/${pathOf(id)}/unload`, { method: "POST", body: {} }),
    );
    const loadWith = (options) => this.#act(() => this.#load(options));
    this.memory = memory ? new Memory(id, { load: loadWith }) : null;
    this.element = h(
      "li",
      { class: "card" },
      h("div", { class: "row" }, h("h3", {}, id), this.state),
      h(
        "div",
        { class: "row" },
        h("div", { class: "about" }, this.facts, this.names),
        h("div", { class: "row" }, this.memory?.button, this.load, this.switch, this.unload),
      ),
      this.progress,
      this.error,
      this.memory?.element,
    );
  }

  show(model, admin) {
    const { state } = model;
    if (state !== this.element.dataset.state) this.failure = null;
    this.element.dataset.state = state;
    const loading = state === "loading";
    setText(this.state, loading ? `loading ${Math.round(model.progress * 100)} %` : state);
    setText(this.facts, facts(model));
    this.#showNames(model);
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
    this.memory?.show({ loaded, elsewhere: model.inCluster });
  }

  #showNames({ default: isDefault, source, names }) {
    const chips = names.map((name) => h("span", {}, name));
    if (this.memory) chips.unshift(h("span", { class: "source" }, source));
    if (isDefault) chips.unshift(h("span", { class: "mark" }, "default"));
    const same = (chip, at) => chip.textContent === this.names.children[at]?.textContent;
    if (chips.length === this.names.children.length && chips.every(same)) return;
    this.names.replaceChildren(...chips);
  }

  #button(label, act) {
    const onclick = () => this.#act(act);
    const props = { type: "button", hidden: true, "aria-label": `${label} ${this.id}`, onclick };
    return h("button", props, label);
  }

  #act(act) {
    this.failure = null;
    act().catch((error) => (this.failure = error.message));
  }

  #load(options) {
    return this.#follow(events(`v1/models/${pathOf(this.id)}/load`, options));
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
