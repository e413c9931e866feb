// What the server has, as far as it changes seldom: models and their names, and what a key may do.

import { json } from "../api.js";

/** Asked for anew by `ask(stats)`. */
export class Catalog {
  constructor() {
    this.admin = false;
    this.cards = [];
    this.names = new Map();
    this.folder = [];
  }

  async ask({ models }) {
    this.admin = (await json("v1/auth/permission")).permission === "admin";
    this.cards = (await json("v1/models")).data;
    const running = new Set(models.map(({ id }) => id));
    const others = this.cards.filter(({ id }) => !running.has(id));
    this.names = new Map(this.cards.map(({ id, aliases = [] }) => [id, [...aliases]]));
    for (const { id, parent } of others) this.names.get(parent)?.push(id);
    const listed = new Set(this.cards.map(({ id }) => id));
    const loadable = this.admin ? (await json("v1/model/list")).data : [];
    this.folder = [
      ...others.filter(({ parent, source }) => !parent && source === "folder"),
      ...loadable.filter(({ id }) => !listed.has(id)).map(({ id }) => ({ id, source: "folder" })),
    ];
  }

  /** The models of /v1/stats, with what else is known of them. */
  describe(models) {
    const cards = new Map(this.cards.map((card) => [card.id, card]));
    return models.map((model) => ({
      ...model,
      source: cards.get(model.id)?.source ?? "config",
      names: this.names.get(model.id) ?? [],
    }));
  }

  /** All that can be loaded: those models, and behind them what only lies in the folder. */
  everything(models) {
    const known = new Set(models.map(({ id }) => id));
    const lying = this.folder.filter(({ id }) => !known.has(id));
    return [
      ...this.describe(models),
      ...lying.map((card) => ({ ...card, state: "unloaded", names: card.aliases ?? [] })),
    ];
  }
}
