// What will go with the next message: files by button, paste and drop.

import { byId } from "../dom.js";
import { PLURALS, kindOf, mediaList, readItem } from "./media.js";

/** The files beside the message box. `say(words)` tells the user, `show(change)` makes room. */
export class Attachments {
  constructor({ say, show }) {
    this.say = say;
    this.show = show;
    this.items = [];
    this.kinds = [];
    this.model = "";
    this.reading = Promise.resolve();
    this.#wire();
  }

  /** The chosen model, and what it takes beside text; `kinds` undefined while that is unknown. */
  offer(model, kinds) {
    this.model = model;
    this.kinds = kinds;
    const words = wordsFor(kinds);
    byId("attach").hidden = !words;
    byId("attach").title = byId("attach").ariaLabel = `Add ${words}`;
    byId("files").accept = (kinds ?? []).map((kind) => `${kind}/*`).join();
  }

  /** Whether the chosen model takes them all, as far as is known; says so if not. */
  get fit() {
    const { kinds, items } = this;
    const wrong = kinds && items.find(({ kind }) => !kinds.includes(kind));
    if (wrong) this.say(`${this.model} takes no ${PLURALS[wrong.kind]}: remove ${wrong.name}.`);
    return !wrong;
  }

  /** The items, which are then gone from here. */
  take() {
    const { items } = this;
    this.#set([]);
    return items;
  }

  /** Read files in their order, after those that are being read. */
  add(files) {
    const chosen = [...files];
    this.reading = this.reading.then(async () => {
      for (const file of chosen) await this.#read(file);
    });
  }

  async #read(file) {
    const kind = kindOf(file);
    try {
      if (!this.kinds) throw new Error(`${this.model} has to be loaded before it is sent files.`);
      if (!kind || !this.kinds.includes(kind)) {
        const taken = wordsFor(this.kinds) || "text only";
        throw new Error(`${file.name} cannot be sent: ${this.model} takes ${taken}.`);
      }
      this.#set([...this.items, await readItem(file)]);
      this.say(`${file.name} added.`);
    } catch (error) {
      this.say(error.message);
    }
  }

  #set(items) {
    this.items = items;
    const list = items.length ? [mediaList(items, "To be sent", (item) => this.#remove(item))] : [];
    this.show(() => byId("attached").replaceChildren(...list));
  }

  #remove(item) {
    this.#set(this.items.filter((each) => each !== item));
    this.say(`${item.name} removed.`);
    byId("prompt").focus();
  }

  #wire() {
    const files = byId("files");
    byId("attach").addEventListener("click", () => files.click());
    files.addEventListener("change", () => {
      this.add(files.files);
      files.value = ""; // the same file can be chosen again
      byId("prompt").focus();
    });
    document.addEventListener("paste", (event) => {
      const { files: pasted } = event.clipboardData;
      if (!pasted.length || event.clipboardData.types.includes("text/plain")) return; // a table, say
      event.preventDefault();
      this.add(pasted);
    });
    for (const name of ["dragenter", "dragover", "dragleave", "drop"]) {
      document.addEventListener(name, (event) => this.#drag(event));
    }
  }

  /** A file that is dropped beside the box would be opened in place of the page. */
  #drag(event) {
    if (!event.dataTransfer.types.includes("Files")) return;
    const leaves = event.type === "dragleave" && !event.relatedTarget;
    document.body.classList.toggle("dropping", event.type !== "drop" && !leaves);
    event.preventDefault();
    if (event.type === "drop") this.add(event.dataTransfer.files);
  }
}

const wordsFor = (kinds) => (kinds ?? []).map((kind) => PLURALS[kind]).join(" and ");
