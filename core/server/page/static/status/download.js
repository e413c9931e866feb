// Downloading a model or a LoRA from the Hugging Face hub.

import { events } from "../api.js";
import { byId, h, setText } from "../dom.js";

const MB = 1e6;

/** The form of a download, and how far it is; `done()` when there is something new. */
export class Download {
  constructor({ done }) {
    this.done = done;
    const field = (label, props) => h("label", {}, label, h("input", props));
    const kinds = ["model", "lora"].map((value) => h("option", { value }, value));
    this.button = h("button", { type: "submit" }, "Download");
    this.stop = h("button", { type: "button", onclick: () => this.aborting.abort() }, "Stop");
    this.stop.hidden = true;
    this.progress = h("progress", { max: 1, hidden: true, "aria-label": "Download" });
    this.message = h("p", { class: "hint", role: "status" });
    this.form = h(
      "form",
      { class: "download", autocomplete: "off", onsubmit: (event) => this.#submit(event) },
      field("Repository", { name: "repo_id", required: true, placeholder: "Qwen/Qwen3-4B" }),
      field("Revision", { name: "revision", placeholder: "main" }),
      field("Only files like", { name: "include", placeholder: "*Q4_K_M.gguf" }),
      h("label", {}, "Kind", h("select", { name: "repo_type" }, kinds)),
      field("Hub token", { name: "token", type: "password", autocomplete: "off" }),
      h("div", { class: "row" }, this.button, this.stop),
    );
    byId("download").append(this.form, this.progress, this.message);
  }

  async #submit(event) {
    event.preventDefault();
    const { include, ...rest } = Object.fromEntries(new FormData(this.form));
    const body = { ...rest, include: include.split(/[\s,]+/), stream: true };
    this.aborting = new AbortController();
    this.#running(true);
    setText(this.message, "Asking the hub…");
    try {
      for await (const said of events("v1/download", body, this.aborting.signal)) this.#show(said);
      this.done();
    } catch (error) {
      const stopped = error.name === "AbortError";
      setText(this.message, stopped ? "Stopped; downloading again resumes from here." : error.message);
    } finally {
      this.#running(false);
      this.form.elements.token.value = "";
    }
  }

  #running(is) {
    this.button.disabled = is;
    this.stop.hidden = !is;
    this.progress.hidden = true; // until it is known how much there is
  }

  #show({ status, file, completed, total, completed_files, files, download_path: folder }) {
    this.progress.hidden = !total;
    if (total) this.progress.value = completed / total;
    const amount = `${(completed / MB).toFixed(0)} of ${(total / MB).toFixed(0)} MB`;
    const doing = `${amount}, ${completed_files} of ${files} files: ${file}`;
    setText(this.message, status === "finished" ? `Downloaded to ${folder}` : doing);
  }
}
