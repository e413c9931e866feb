// What the server is and does, asked for every second.

import { json } from "../api.js";
import { byId, setText } from "../dom.js";
import { ModelList } from "../models/list.js";
import { Activity } from "./activity.js";
import { Catalog } from "./catalog.js";
import { History } from "./history.js";
import { poll } from "./poll.js";
import { RequestList } from "./requests.js";

/**
 * `described(catalog)`: what the server has, or what the key may do, has changed;
 * `follow(models, catalog)`: how the models are now; `askForKey(reason)`: a key is needed.
 */
export class Status {
  constructor({ described, follow, askForKey }) {
    this.described = described;
    this.follow = follow;
    this.askForKey = askForKey;
    this.catalog = new Catalog();
    this.history = new History();
    this.activity = new Activity();
    this.models = new ModelList(byId("running"));
    this.requests = new RequestList();
    this.states = null;
    this.asked = false;
    document.addEventListener("visibilitychange", () => (this.states = null));
    this.polling = poll(() => this.#ask(), 1);
  }

  /** Another key may see and do other things. */
  newKey() {
    this.asked = false;
    this.refresh();
  }

  /** Look what the server has, now. */
  refresh() {
    this.states = null;
    this.polling.now();
  }

  async #ask() {
    try {
      const stats = await json("v1/stats");
      await this.#describe(stats);
      this.history.add(stats);
      this.activity.show(this.history);
      this.models.show(this.catalog.describe(stats.models), this.catalog.admin);
      this.follow(stats.models, this.catalog);
      await this.requests.refresh(stats);
      showHealth(...healthOf(stats.models));
      byId("status").classList.remove("stale");
      return true;
    } catch (error) {
      if (!("status" in error)) throw error;
      this.states = null;
      byId("status").classList.add("stale");
      const refused = error.status === 401;
      showHealth("failed", refused ? "needs a key" : error.message);
      if (refused && !this.asked) this.askForKey(error.message);
      this.asked ||= refused;
      return !refused;
    }
  }

  async #describe(stats) {
    const states = JSON.stringify([stats.listed, stats.models.map(({ id, state }) => [id, state])]);
    if (states === this.states) return;
    await this.catalog.ask(stats);
    this.states = states;
    this.described(this.catalog);
  }
}

function healthOf(models) {
  const count = (state) => models.filter((model) => model.state === state).length;
  const others = ["failed", "loading", "draining", "unloaded"].filter(count);
  const words = [...others, "ready"].map((state) => `${count(state)} ${state}`).join(", ");
  return [others.find((state) => state === "failed" || state === "loading") ?? "ready", words];
}

function showHealth(state, words) {
  byId("health").dataset.state = state;
  setText(byId("health"), words);
}
