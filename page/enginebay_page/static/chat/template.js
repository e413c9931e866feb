// A model without a chat template: what the chat does with it, and the templates that it may use.

import { call, json } from "../api.js";
import { byId, h } from "../dom.js";

/** The line about it; `changed()` is called when the model uses a template. */
export class TemplateChoice {
  constructor({ changed }) {
    this.element = byId("template");
    this.changed = changed;
    this.shown = "";
  }

  /** Show the line if the model continues text; admins may choose a template. */
  async offer(model, { continues, admin }) {
    const shown = continues ? `${admin} ${model}` : "";
    if (shown === this.shown) return;
    this.shown = shown;
    this.element.hidden = !continues;
    if (!continues) return;
    this.#say(`${model} has no chat template. It continues the text of this chat.`);
    if (!admin) return;
    try {
      const names = (await json(`v1/templates?model=${encodeURIComponent(model)}`)).data;
      if (shown === this.shown) this.#add(" For a chat, choose a template:", ...this.#buttons(model, names));
    } catch (error) {
      if (shown === this.shown) this.#add(` ${error.message}`);
    }
  }

  #buttons(model, names) {
    const use = async (name) => {
      try {
        await call("v1/template/switch", { method: "POST", body: { model, prompt_template_name: name } });
        this.changed();
      } catch (error) {
        this.#say(error.message);
      }
    };
    return names.flatMap((name) => [" ", h("button", { type: "button", onclick: () => use(name) }, name)]);
  }

  #say(words) {
    this.element.replaceChildren(words);
  }

  #add(...what) {
    this.element.append(...what);
  }
}
