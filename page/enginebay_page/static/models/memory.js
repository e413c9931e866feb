// The memory that a model takes, before it is loaded: whether it fits, or by how much it does not.

import { json, pathOf } from "../api.js";
import { h } from "../dom.js";
import { exact, size } from "../format.js";
import { inline } from "../inline.js";

/** A `button` that opens `element`; `load(options)` loads the model with the context asked for. */
export class Memory {
  constructor(id, { load }) {
    this.id = id;
    this.asking = 0;
    this.unknown = false; // to this server
    this.context = h("input", {
      type: "number",
      min: 1,
      step: 1,
      placeholder: "as configured",
      "aria-label": `Context length of ${id}`,
    });
    this.load = h("button", { type: "button", onclick: () => load(this.#options()) }, "Load with it");
    this.result = h("div", { class: "memory-result", "aria-live": "polite" });
    this.element = h(
      "form",
      { class: "memory", hidden: true },
      h(
        "div",
        { class: "row" },
        h("label", {}, "Context length", this.context),
        h("button", { type: "submit" }, "Estimate"),
        this.load,
      ),
      this.result,
    );
    this.element.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#ask();
    });
    this.button = h(
      "button",
      { type: "button", "aria-label": `Memory of ${id}`, onclick: () => this.#toggle() },
      "Memory",
    );
    this.button.ariaExpanded = "false";
  }

  /** `loaded`: it cannot be loaded otherwise now; `elsewhere`: on machines that say themselves. */
  show({ loaded, elsewhere }) {
    this.load.hidden = loaded;
    this.button.hidden = this.unknown || elsewhere;
    if (this.button.hidden && !this.element.hidden) this.#toggle();
  }

  #options() {
    return this.context.value ? { max_seq_len: this.context.valueAsNumber } : {};
  }

  #toggle() {
    this.element.hidden = !this.element.hidden;
    this.button.ariaExpanded = String(!this.element.hidden);
    if (!this.element.hidden) this.#ask();
  }

  async #ask() {
    const asking = (this.asking += 1);
    this.result.replaceChildren(h("p", { class: "hint" }, "Reading the model's headers…"));
    const said = await this.#answer();
    if (asking === this.asking) this.result.replaceChildren(...said);
  }

  async #answer() {
    const { value } = this.context;
    const query = value ? `?${new URLSearchParams({ context_length: value })}` : "";
    try {
      return inWords(await json(`v1/models/${pathOf(this.id)}/memory${query}`));
    } catch (error) {
      if (error.status === 404) this.unknown = this.button.hidden = this.element.hidden = true;
      return [h("p", { class: "error" }, error.message)];
    }
  }
}

const NAMES = { kv_cache: "KV cache", mmproj: "picture encoder", adapters: "LoRA adapters" };
const MEMORY = { gpu: "GPU memory", ram: "RAM" };
const nameOf = ({ name }) => NAMES[name] ?? name.replaceAll("_", " ");

function inWords(answer) {
  const { fits, parts, advice } = answer;
  const kinds = ["gpu", "ram"].filter((kind) => answer[kind] || answer[`free_${kind}`]);
  const row = (name, amounts) =>
    h("tr", {}, h("th", { scope: "row" }, name), kinds.map((kind) => h("td", {}, amount(amounts[kind]))));
  const free = { gpu: answer.free_gpu, ram: answer.free_ram };
  const table = h(
    "table",
    { class: "numbers" },
    h("thead", {}, h("tr", {}, h("td"), kinds.map((kind) => h("th", { scope: "col" }, kind.toUpperCase())))),
    h("tbody", {}, parts.map((part) => row(nameOf(part), part))),
    h("tfoot", {}, row("together", answer), row("free", free)),
  );
  return [
    h("p", { class: fits ? "fits" : "error" }, verdict(answer, kinds)),
    advice.length ? h("ul", { class: "advice" }, advice.map((each) => h("li", {}, inline(each)))) : "",
    table,
    h("p", { class: "hint" }, conditions(answer)),
  ];
}

/** What the estimate is for. */
function conditions({ context_length: context, gpu_layers: onGpu, layers }) {
  return [
    context ? `${exact(context)} tokens of context` : null,
    layers && onGpu !== null ? `${onGpu} of ${layers} layers on the GPU` : null,
  ]
    .filter(Boolean)
    .join(" · ");
}

const amount = (bytes) => (bytes === null ? "–" : size(bytes));

function verdict(answer, kinds) {
  const over = kinds
    .filter((kind) => answer[`free_${kind}`] !== null)
    .map((kind) => [kind, answer[kind] - answer[`free_${kind}`]])
    .filter(([, bytes]) => bytes > 0)
    .map(([kind, bytes]) => `${size(bytes)} more ${MEMORY[kind]} than is free`);
  if (answer.fits) return "It fits.";
  return over.length ? `It does not fit: it needs ${over.join(" and ")}.` : "It does not fit.";
}
