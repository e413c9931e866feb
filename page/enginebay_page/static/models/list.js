// A list of models, one card each.

import { ModelCard } from "./card.js";

/** Cards in `element`; `memory`: with what each takes in memory. */
export class ModelList {
  constructor(element, { memory = false } = {}) {
    this.element = element;
    this.memory = memory;
    this.cards = new Map();
  }

  /** Show these models, for admins with buttons; only those with `filter` in one of their names. */
  show(models, admin, filter = "") {
    for (const [id, card] of this.cards) {
      if (models.some((model) => model.id === id)) continue;
      card.element.remove();
      this.cards.delete(id);
    }
    const wanted = filter.trim().toLowerCase();
    for (const model of models) {
      const { id, names } = model;
      if (!this.cards.has(id)) {
        this.cards.set(id, new ModelCard(id, this));
        this.element.append(this.cards.get(id).element);
      }
      const card = this.cards.get(id);
      card.show(model, admin);
      card.element.hidden = ![id, ...names].some((name) => name.toLowerCase().includes(wanted));
    }
    this.element.dataset.empty = "No model is configured.";
  }
}
