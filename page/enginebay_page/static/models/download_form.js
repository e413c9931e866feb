// Downloading by name: a repository of the hub, or some of its files.

import { byId, h } from "../dom.js";

/** The form; `download(body, title)` begins. */
export class DownloadForm {
  constructor({ download }) {
    this.download = download;
    const field = (label, props) => h("label", {}, label, h("input", props));
    const kinds = ["model", "lora"].map((value) => h("option", { value }, value));
    this.form = h(
      "form",
      { class: "download", autocomplete: "off", onsubmit: (event) => this.#submit(event) },
      field("Repository", { name: "repo_id", required: true, placeholder: "Qwen/Qwen3-4B" }),
      field("Revision", { name: "revision", placeholder: "main" }),
      field("Only files like", { name: "include", placeholder: "*Q4_K_M.gguf" }),
      h("label", {}, "Kind", h("select", { name: "repo_type" }, kinds)),
      field("Hub token", { name: "token", type: "password", autocomplete: "off" }),
      h("div", { class: "row" }, h("button", { type: "submit" }, "Download")),
    );
    byId("download").append(this.form);
  }

  #submit(event) {
    event.preventDefault();
    const { include, ...rest } = Object.fromEntries(new FormData(this.form));
    const patterns = include.split(/[\s,]+/).filter(Boolean);
    this.form.elements.token.value = "";
    this.download({ ...rest, include: patterns }, [rest.repo_id, ...patterns].join(" "));
  }
}
