// The cluster that the server is in: its machines, the engines on them, and models that lack some.

import { json } from "../api.js";
import { byId, setText } from "../dom.js";
import { poll } from "../status/poll.js";
import { free, modelRow, nodeCard, nodesOf } from "./cluster_cards.js";

/** The section, which is there for admins of a server in a cluster; asked for while it is in view. */
export class Cluster {
  constructor() {
    this.section = byId("cluster");
    this.models = new Shown(byId("cluster-models"), modelRow);
    this.nodes = new Shown(byId("cluster-nodes"), nodeCard);
    this.admin = false;
    this.polling = poll(() => this.#ask(), 2);
  }

  /** Whether the user may see it. */
  allow(admin) {
    const now = admin && !this.admin;
    this.admin = admin;
    if (now) this.refresh();
    if (!admin) this.section.hidden = true;
  }

  /** Whether engines of this name run there, as far as is known. */
  has(name) {
    return this.models.known.has(name);
  }

  /** Look, now, and go on if there is a cluster. */
  refresh() {
    this.polling.now();
  }

  async #ask() {
    const seen = () => this.admin && document.body.dataset.view === "models";
    if (!seen()) return false;
    try {
      const status = await json("v1/cluster");
      if (!seen()) return false;
      this.#show(status);
      this.#fail("");
    } catch (error) {
      if (!("status" in error)) throw error;
      const none = [401, 403, 404].includes(error.status); // for this key, or at all
      if (none) this.section.hidden = true;
      else this.#fail(error.message);
      return !none;
    }
    return true;
  }

  #show(status) {
    this.section.hidden = false;
    setText(byId("cluster-free"), inShort(status.nodes));
    this.models.show(status.models.map((model) => [model.name, model]));
    this.nodes.show(nodesOf(status).map((node) => [node.id, node]));
  }

  /** Say what is wrong, beside what was known last. */
  #fail(words) {
    const error = byId("cluster-error");
    if (words) this.section.hidden = false;
    setText(error, words);
    error.hidden = !words;
    this.section.classList.toggle("stale", Boolean(words));
  }
}

/** Elements in `list` that `make(data)` makes, each made anew only when its data has changed. */
class Shown {
  constructor(list, make) {
    this.list = list;
    this.make = make;
    this.known = new Map();
  }

  show(entries) {
    const before = this.known;
    this.known = new Map(
      entries.map(([id, data]) => {
        const text = JSON.stringify(data);
        const old = before.get(id);
        return [id, old?.text === text ? old : { text, element: this.make(data) }];
      }),
    );
    const elements = [...this.known.values()].map(({ element }) => element);
    const same = elements.every((element, at) => element === this.list.children[at]);
    if (!same || elements.length !== this.list.children.length) this.list.replaceChildren(...elements);
  }
}

function inShort(nodes) {
  const alive = nodes.filter((node) => node.alive);
  const words = `${nodes.length} ${nodes.length === 1 ? "node" : "nodes"}`;
  const some = alive.length < nodes.length;
  return [some ? `${alive.length} of ${words} alive` : words, ...free(alive)].join(" · ");
}
