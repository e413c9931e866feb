// The models: what they are, what state they are in, loading and unloading them.

import { call, events } from "../api.js";
import { byId, h, setText } from "../dom.js";

const GIB = 2 ** 30;

/** The cards of the models. `failed(error)` hears of errors of loading and unloading. */
export class ModelCards {
  constructor({ failed }) {
    this.failed = failed;
    this.cards = new Map();
    this.admin = false;
  }

  /** Show the models of /v1/stats, with what /v1/models says of them. */
  show(models, described) {
    const list = byId("models");
    for (const [id, card] of this.cards) {
      if (models.some((model) => model.id === id)) continue;
      card.element.remove();
      this.cards.delete(id);
    }
    for (const model of models) {
      if (!this.cards.has(model.id)) {
        this.cards.set(model.id, new Card(model.id, this));
        list.append(this.cards.get(model.id).element);
      }
      this.cards.get(model.id).show(model, described, this.admin);
    }
    list.dataset.empty = models.length ? "" : "No model is configured.";
  }
}

class Card {
  constructor(id, { failed }) {
    this.id = id;
    this.failed = failed;
    this.state = h("span", { class: "state" });
    this.facts = h("p", { class: "hint" });
    this.names = h("p", { class: "chips" });
    this.progress = h("progress", { max: 1, hidden: true, "aria-label": `Loading ${id}` });
    this.error = h("p", { class: "error", hidden: true });
    this.button = h("button", { type: "button", onclick: () => this.#act() });
    this.element = h(
      "li",
      { class: "card" },
      h("div", { class: "row" }, h("h3", {}, id), this.state, this.button),
      this.facts,
      this.names,
      this.progress,
      this.error,
    );
    this.acting = false;
  }

  show(model, described, admin) {
    this.model = model;
    this.element.dataset.state = model.state;
    const loading = model.state === "loading";
    const percent = loading ? ` ${Math.round(model.progress * 100)} %` : "";
    setText(this.state, `${model.state}${percent}`);
    setText(this.facts, facts(model));
    this.#showNames(described);
    this.progress.hidden = !loading;
    if (loading) this.progress.value = model.progress;
    setText(this.error, model.error ?? "");
    this.error.hidden = !model.error;
    this.button.hidden = !admin;
    setText(this.button, this.#loaded ? "Unload" : "Load");
    this.button.setAttribute("aria-label", `${this.button.textContent} ${this.id}`);
    this.button.disabled = this.acting || loading || model.state === "draining";
  }

  get #loaded() {
    return ["ready", "loading", "draining"].includes(this.model.state);
  }

  #showNames(described) {
    const others = described.filter((card) => card.parent === this.id).map((card) => card.id);
    const aliases = described.find((card) => card.id === this.id)?.aliases ?? [];
    const names = [...aliases, ...others];
    if (this.names.childElementCount !== names.length) {
      this.names.replaceChildren(...names.map((name) => h("span", {}, name)));
    }
  }

  async #act() {
    this.acting = this.button.disabled = true;
    try {
      if (this.#loaded) await call("v1/model/unload", { method: "POST", body: { name: this.id } });
      else for await (const _ of events("v1/model/load", { name: this.id })); // /v1/stats shows it
    } catch (error) {
      this.failed(error);
    } finally {
      this.acting = false;
    }
  }
}

function facts({ backend, context_length: context, memory, running, waiting }) {
  const tokens = context >= 10_000 ? `${Math.round(context / 1024)}k` : context;
  return [
    backend,
    context ? `${tokens} context` : null,
    memory ? `${(memory / GIB).toFixed(memory < 10 * GIB ? 2 : 1)} GiB` : null,
    running ? `${running} running` : null,
    waiting ? `${waiting} waiting` : null,
  ]
    .filter(Boolean)
    .join(" · ");
}
