// LoRA adapters of the server's folder: which a model applies, and how strongly.

import { call, json } from "../api.js";
import { byId, h } from "../dom.js";

/** The section of LoRAs; what is there is asked for when it is opened. */
export class Loras {
  constructor({ chosenModel }) {
    this.chosenModel = chosenModel;
    this.message = h("p", { class: "hint", role: "status" });
    this.form = h("form", { onsubmit: (event) => this.#submit(event) });
    byId("loras").append(this.form, this.message);
    byId("loras-section").addEventListener("toggle", ({ target }) => target.open && this.refresh());
  }

  async refresh(said = "") {
    const model = this.chosenModel();
    try {
      const found = (await json("v1/loras")).data;
      const query = new URLSearchParams({ model });
      const loaded = (await json(`v1/lora?${query}`)).data;
      this.#show(model, found, new Map(loaded.map((lora) => [lora.id, lora.scaling])));
      this.message.textContent = said;
    } catch (error) {
      this.message.textContent = error.message;
    }
  }

  #show(model, found, loaded) {
    this.model = model;
    if (!found.length) {
      this.form.replaceChildren("The LoRA folder (lora_dir in the config) is empty.");
      return;
    }
    const rows = found.map(({ id }) => {
      const chosen = h("input", { type: "checkbox", name: id, checked: loaded.has(id) });
      const scaling = h("input", {
        type: "number",
        step: "any",
        value: loaded.get(id) ?? 1,
        "aria-label": `Scaling of ${id}`,
      });
      return h("div", { class: "lora" }, h("label", { class: "check" }, chosen, id), scaling);
    });
    const apply = h("button", { type: "submit" }, `Apply to ${model}`);
    this.form.replaceChildren(...rows, apply);
  }

  async #submit(event) {
    event.preventDefault();
    const loras = [...this.form.querySelectorAll(".lora")]
      .map((row) => row.querySelectorAll("input"))
      .filter(([chosen]) => chosen.checked)
      .map(([chosen, scaling]) => ({ name: chosen.name, scaling: scaling.valueAsNumber }));
    this.message.textContent = "Loading…";
    try {
      const { model } = this;
      const [path, body] = loras.length ? ["load", { model, loras }] : ["unload", { model }];
      const answer = await call(`v1/lora/${path}`, { method: "POST", body });
      const { success, errors = {} } = await answer.json();
      const what = loras.length ? "Loaded" : "Unloaded";
      const said = [`${what}: ${success.join(", ") || "none"}.`, ...Object.values(errors)];
      await this.refresh(said.join(" "));
    } catch (error) {
      this.message.textContent = error.message;
    }
  }
}
