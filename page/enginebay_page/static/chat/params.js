// The settings of a chat: the fields of a request besides its messages. Empty ones are not sent.

import { h } from "../dom.js";
import { load, save } from "../store.js";

const NUMBERS = [
  ["temperature", { min: 0, max: 5, step: 0.05 }],
  ["top_p", { min: 0, max: 1, step: 0.01 }],
  ["min_p", { min: 0, max: 1, step: 0.01 }],
  ["top_k", { min: -1, step: 1 }],
  ["max_tokens", { min: 1, step: 1 }],
  ["seed", { step: 1 }],
  ["repetition_penalty", { min: 0, max: 5, step: 0.01 }],
  ["presence_penalty", { min: -2, max: 2, step: 0.05 }],
  ["frequency_penalty", { min: -2, max: 2, step: 0.05 }],
];
const CHOICES = [
  ["reasoning_effort", ["none", "low", "medium", "high"]],
  ["tool_choice", ["auto", "none", "required"]],
];
const JSONS = [
  ["tools", "Tools", "a JSON list of functions, or of {type, function}", checkTools],
  ["extra", "Other fields", "a JSON object with any fields of the API, such as {\"stop\": [\"###\"]}", checkExtra],
];

/** The form of the settings in `form`, kept for this tab. */
export class Params {
  constructor(form) {
    this.form = form;
    form.append(
      area("system", "System prompt", ""),
      h("div", { class: "grid" }, NUMBERS.map(number), CHOICES.map(choice)),
      h(
        "details",
        {},
        h("summary", {}, "Advanced"),
        JSONS.map(([name, label, hint]) => area(name, label, hint)),
      ),
    );
    for (const [name, value] of Object.entries(load("params", {}))) {
      if (form.elements[name]) form.elements[name].value = value;
    }
    form.addEventListener("input", () => this.#changed());
    form.addEventListener("submit", (event) => event.preventDefault());
    this.#changed();
  }

  /** The system prompt; empty for none. */
  get system() {
    return this.form.elements.system.value;
  }

  set system(text) {
    this.form.elements.system.value = text;
    this.#changed();
  }

  /** The fields of a request; throws an error with words for the user when one cannot be sent. */
  fields() {
    const { elements } = this.form;
    const fields = {};
    for (const [name] of [...NUMBERS, ...CHOICES]) {
      const { value, type, valueAsNumber, validity, validationMessage } = elements[name];
      if (!validity.valid && !validity.stepMismatch) throw new Error(`${name}: ${validationMessage}`);
      if (value) fields[name] = type === "number" ? valueAsNumber : value;
    }
    for (const [name, label, , check] of JSONS) {
      const text = elements[name].value.trim();
      if (text) Object.assign(fields, check(parsed(text, label)));
    }
    return fields;
  }

  #changed() {
    const { elements } = this.form;
    save("params", Object.fromEntries([...elements].filter((e) => e.name).map((e) => [e.name, e.value])));
    for (const [name, label, , check] of JSONS) {
      const box = elements[name];
      try {
        if (box.value.trim()) check(parsed(box.value, label));
        box.setCustomValidity("");
      } catch (error) {
        box.setCustomValidity(error.message);
      }
      box.nextSibling.textContent = box.validationMessage;
    }
  }
}

function number([name, limits]) {
  return h(
    "label",
    {},
    name.replaceAll("_", " "),
    h("input", { name, type: "number", placeholder: "default", ...limits }),
  );
}

function choice([name, values]) {
  const options = values.map((value) => h("option", { value }, value));
  return h(
    "label",
    {},
    name.replaceAll("_", " "),
    h("select", { name }, h("option", { value: "" }, "default"), options),
  );
}

function area(name, label, hint) {
  const box = h("textarea", { name, rows: 2, spellcheck: name === "system", placeholder: hint });
  return h("label", { class: "wide" }, label, box, h("span", { class: "problem", role: "status" }));
}

function parsed(text, label) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${label}: not valid JSON; ${error.message}`);
  }
}

function checkTools(value) {
  const tools = Array.isArray(value) ? value : [value];
  const wrapped = tools.map((tool) => (tool?.function ? tool : { type: "function", function: tool }));
  if (wrapped.some((tool) => typeof tool.function?.name !== "string")) {
    throw new Error("Tools: each needs a name");
  }
  return wrapped.length ? { tools: wrapped } : {};
}

function checkExtra(value) {
  if (value === null || typeof value !== "object" || Array.isArray(value)) {
    throw new Error("Other fields: not a JSON object");
  }
  return value;
}
