// Reading the config again while the server runs.

import { call } from "../api.js";
import { byId, setText } from "../dom.js";

const WORDS = {
  added: "Added",
  removed: "Removed",
  changed: "Changed",
  needs_restart: "Only after a restart",
};

/** The button and what came of it; `done()` when the models may be others. */
export class Reload {
  constructor({ done }) {
    this.done = done;
    this.button = byId("reload-config");
    this.said = byId("reload-said");
    this.button.addEventListener("click", () => this.#reload());
  }

  async #reload() {
    this.button.disabled = true;
    this.#say("Reading the config…");
    try {
      const response = await call("v1/config/reload", { method: "POST" });
      this.#say(inWords(await response.json()));
      this.done();
    } catch (error) {
      const unknown = error.status === 404; // this server cannot do it
      this.button.hidden = unknown;
      this.#say(unknown ? "" : error.message, "error");
    } finally {
      this.button.disabled = false;
    }
  }

  #say(words, kind = "hint") {
    this.said.className = `said-here ${kind}`;
    setText(this.said, words);
  }
}

function inWords(answer) {
  const said = Object.entries(WORDS)
    .filter(([name]) => answer[name]?.length)
    .map(([name, words]) => `${words}: ${answer[name].join(", ")}.`);
  return said.join("\n") || "The config was read again; the models are as before.";
}
