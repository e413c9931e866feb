// Searching the hub, and what a repository has to download.

import { json } from "../api.js";
import { byId, h, setText } from "../dom.js";
import { short, size } from "../format.js";

const LIMIT = 20;

/** The repository that a text names: as owner/name, with a quant behind it, or by its address. */
const NAMED = /^(?:https?:\/\/[^/\s]+\/|hf:\/\/)?(?<id>[\w.-]+\/[\w.-]+)(?:[:/?#]\S*)?$/;

/** The search; `download(body, title)` begins a download. */
export class Hub {
  constructor({ download }) {
    this.download = download;
    this.asking = 0;
    this.query = h("input", {
      id: "hub-search",
      type: "search",
      required: true,
      placeholder: "qwen3 8b gguf, or owner/repository",
      "aria-label": "Search the hub",
    });
    this.message = h("p", { class: "hint", role: "status" });
    this.results = h("ul", { class: "cards", "aria-label": "Found on the hub" });
    this.form = h(
      "form",
      { class: "row search", role: "search", onsubmit: (event) => this.#submit(event) },
      this.query,
      h("button", { type: "submit", class: "primary" }, "Search"),
    );
    byId("hub").append(this.form, this.message, this.results);
  }

  async #submit(event) {
    event.preventDefault();
    const asking = (this.asking += 1);
    const query = this.query.value.trim();
    const { id } = NAMED.exec(query)?.groups ?? {};
    this.#show(id ? [{ id }] : []);
    if (id) this.shown[0].open();
    this.#say("Asking the hub…");
    try {
      const words = new URLSearchParams({ query: id ?? query, limit: LIMIT });
      const { data } = await json(`v1/hub/search?${words}`);
      if (asking !== this.asking) return;
      const found = [...(id ? [{ id }] : []), ...data.filter((each) => each.id !== id)];
      this.#show(found);
      this.#say(found.length ? "" : `The hub has no model called “${query}”.`);
    } catch (error) {
      if (asking !== this.asking) return;
      if (error.status !== 404) this.#say(error.message, "error");
      else byId("hub").hidden = true; // this server cannot search
    }
  }

  #say(words, kind = "hint") {
    this.message.className = kind;
    setText(this.message, words);
  }

  /** Show these repositories; one that is shown already stays as it is. */
  #show(found) {
    const before = new Map(this.shown?.map((each) => [each.id, each]));
    this.shown = found.map((each) => before.get(each.id) ?? new Repository(each, this.download));
    this.results.replaceChildren(...this.shown.map(({ element }) => element));
  }
}

class Repository {
  constructor({ id, downloads, likes, updated, gguf }, download) {
    this.id = id;
    this.download = download;
    this.files = h("div", { class: "files", hidden: true, "aria-live": "polite" });
    this.button = h(
      "button",
      { type: "button", "aria-label": `Files of ${id}`, onclick: () => this.#toggle() },
      "Files",
    );
    this.button.ariaExpanded = "false";
    const facts = [
      downloads === undefined ? null : `${short(downloads)} downloads`,
      likes ? `${short(likes)} likes` : null,
      updated ? `of ${updated.slice(0, 10)}` : null,
    ];
    this.element = h(
      "li",
      { class: "card" },
      h("div", { class: "row" }, h("h3", {}, id), gguf ? h("span", { class: "tag" }, "GGUF") : null),
      h(
        "div",
        { class: "row" },
        h("p", { class: "hint" }, facts.filter(Boolean).join(" · ")),
        this.button,
      ),
      this.files,
    );
  }

  #toggle() {
    if (this.files.hidden) this.open();
    else this.#unfold(false);
  }

  #unfold(is) {
    this.files.hidden = !is;
    this.button.ariaExpanded = String(is);
  }

  /** Show the files, and ask for them unless they are there. */
  async open() {
    this.#unfold(true);
    if (this.files.querySelector("ul")) return;
    this.files.replaceChildren(h("p", { class: "hint" }, "Asking the hub…"));
    try {
      const { data } = await json(`v1/hub/files?${new URLSearchParams({ repo_id: this.id })}`);
      const rows = data.map((each) => this.#row(each));
      this.files.replaceChildren(
        rows.length ? h("ul", {}, rows) : h("p", { class: "hint" }, "No engine here runs its files."),
      );
    } catch (error) {
      this.files.replaceChildren(h("p", { class: "error" }, error.message));
    }
  }

  #row({ name, files, size: bytes, recommended, backend }) {
    const title = `${this.id}:${name}`;
    const start = () => this.download({ repo_id: this.id, quant: name }, title);
    const many = files.length > 1 ? `${files.length} files` : null;
    const facts = [bytes ? size(bytes) : null, backend, many].filter(Boolean).join(" · ");
    return h(
      "li",
      { class: "row" },
      h(
        "p",
        { title: files.join("\n") },
        h("strong", {}, name),
        " ",
        h("small", {}, facts),
        " ",
        recommended ? h("span", { class: "tag recommended" }, "recommended") : null,
      ),
      h("button", { type: "button", "aria-label": `Download ${title}`, onclick: start }, "Download"),
    );
  }
}
