// What the server is and does, asked for every second.

import { json } from "../api.js";
import { byId, setText } from "../dom.js";
import { Activity } from "./activity.js";
import { Download } from "./download.js";
import { History } from "./history.js";
import { Loras } from "./loras.js";
import { ModelCards } from "./models.js";
import { poll } from "./poll.js";
import { RequestList } from "./requests.js";

/**
 * `offer(cards)`: what can be asked for has changed; `follow(models)`: how the models are now;
 * `askForKey(reason)`: a key is needed.
 */
export class Status {
  constructor({ offer, follow, chosenModel, askForKey }) {
    this.offer = offer;
    this.follow = follow;
    this.askForKey = askForKey;
    this.history = new History();
    this.activity = new Activity();
    this.cards = new ModelCards();
    this.requests = new RequestList();
    this.loras = new Loras({ chosenModel });
    this.download = new Download({ done: () => (this.states = null) });
    this.names = new Map();
    this.folder = [];
    this.admin = false;
    this.states = null;
    this.asked = false;
    this.polling = poll(() => this.#ask(), 1);
  }

  /** Another key may see and do other things. */
  newKey() {
    this.states = null;
    this.asked = false;
    this.polling.now();
  }

  async #ask() {
    try {
      const stats = await json("v1/stats");
      const states = JSON.stringify(stats.models.map(({ id, state }) => [id, state]));
      if (states !== this.states) await this.#describe(stats);
      this.states = states;
      this.history.add(stats);
      this.activity.show(this.history);
      this.cards.show(stats.models, this.names, this);
      this.follow(stats.models);
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

  /** What changes seldom: names, rights, the folder of models. */
  async #describe({ models }) {
    this.admin = (await json("v1/auth/permission")).permission === "admin";
    byId("loras-section").hidden = byId("download-section").hidden = !this.admin;
    const cards = (await json("v1/models")).data;
    this.offer(cards);
    const ids = new Set(cards.map((card) => card.id));
    this.names = new Map(cards.map(({ id, aliases = [] }) => [id, [...aliases]]));
    const others = cards.filter(({ id }) => !models.some((model) => model.id === id));
    for (const { id, parent } of others) this.names.get(parent)?.push(id);
    const loadable = this.admin ? (await json("v1/model/list")).data : [];
    this.folder = loadable.map(({ id }) => id).filter((id) => !ids.has(id));
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
