// The panel of the user's prompts.

import { byId, h, setText } from "../dom.js";
import { openButton, saveFile } from "../files.js";
import * as library from "./library.js";

/** `current(kind)`: the text that can be kept; `insert(prompt)`: it is wanted in the chat. */
export class LibraryPanel {
  constructor({ current, insert }) {
    this.current = current;
    this.insert = insert;
    this.name = h("input", { required: true, maxLength: 100, placeholder: "Name", "aria-label": "Name" });
    this.kind = h(
      "select",
      { "aria-label": "What to keep" },
      Object.entries(library.KINDS).map(([value, words]) => h("option", { value }, `this ${words.toLowerCase()}`)),
    );
    this.list = h("ul", { class: "prompts" });
    this.said = h("p", { class: "hint", role: "status" });
    const imported = (value) => this.#do(() => `Imported: ${library.importPrompts(value)}.`);
    byId("prompts").append(
      h(
        "form",
        { class: "row", autocomplete: "off", onsubmit: (event) => this.#keep(event) },
        h("span", {}, "Keep"),
        this.kind,
        h("span", {}, "as"),
        this.name,
        h("button", { type: "submit" }, "Save"),
      ),
      this.list,
      h(
        "div",
        { class: "row" },
        h("button", { type: "button", onclick: () => this.#export() }, "Export prompts"),
        openButton("Import prompts", imported, (words) => this.#say(words, "error")),
      ),
      this.said,
    );
    library.whenChanged(() => this.#show());
    this.#show();
  }

  #keep(event) {
    event.preventDefault();
    const kind = this.kind.value;
    const prompt = { kind, name: this.name.value.trim(), text: this.current(kind) };
    this.#do(() => {
      if (!prompt.name) throw new Error("It needs a name.");
      if (!prompt.text.trim()) throw new Error(`There is no ${library.KINDS[kind].toLowerCase()} to keep.`);
      library.keepPrompt(prompt);
      this.name.value = "";
      return `Saved as ${prompt.name}.`;
    });
  }

  #export() {
    saveFile("enginebay-prompts.json", library.exported(), "application/json");
  }

  #show() {
    const rows = library.prompts().map((prompt) => this.#row(prompt));
    this.list.replaceChildren(...rows);
    this.list.dataset.empty = "No prompts are kept in this browser yet.";
  }

  #row(prompt) {
    const { kind, name, text } = prompt;
    const button = (label, onclick) =>
      h("button", { type: "button", class: "quiet", "aria-label": `${label} ${name}`, onclick }, label);
    const row = h(
      "li",
      {},
      h("strong", {}, name),
      h("small", {}, library.KINDS[kind]),
      h(
        "div",
        { class: "buttons" },
        button("Insert", () => this.insert(prompt)),
        button("Rename", () => row.replaceWith(this.#renaming(prompt))),
        button("Delete", () => this.#do(() => {
          library.forgetPrompt(prompt);
          return `${name} deleted.`;
        })),
      ),
      h("p", { class: "hint", title: text }, text),
    );
    return row;
  }

  #renaming(prompt) {
    const box = h("input", { required: true, maxLength: 100, value: prompt.name });
    box.ariaLabel = `New name of ${prompt.name}`;
    const form = h(
      "form",
      { class: "row", autocomplete: "off" },
      box,
      h("button", { type: "submit" }, "Rename"),
      h("button", { type: "button", onclick: () => this.#show() }, "Cancel"),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const name = box.value.trim();
      if (name) this.#do(() => (library.renamePrompt(prompt, name), `Renamed to ${name}.`));
    });
    form.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      this.#show();
    });
    queueMicrotask(() => box.select());
    return h("li", {}, form);
  }

  /** Do it, show what is there then, and say what came of it. */
  #do(act) {
    try {
      this.#say(act());
    } catch (error) {
      this.#say(error.message, "error");
    }
    this.#show();
  }

  #say(words, kind = "hint") {
    this.said.className = kind;
    setText(this.said, words);
  }
}
