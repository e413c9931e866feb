// What the page shows of one model, node and engine of a cluster.

import { h } from "../dom.js";
import { size } from "../format.js";

/** What the dots of `.state` mean, by the states of engines. */
const DOTS = { ready: "ready", unavailable: "failed" };

const amount = (value) => String(Number(value.toFixed(2)));

/** How many CPUs and GPUs of these nodes are free, in words; those of each kind that there are. */
export function free(nodes) {
  return ["cpus", "gpus"].flatMap((kind) => {
    const having = nodes.filter((node) => node[kind]);
    if (!having.length) return [];
    const all = having.reduce((sum, node) => sum + node[kind], 0);
    const left = having.reduce((sum, node) => sum + node[`free_${kind}`], 0);
    const known = having.every((node) => node[`free_${kind}`] !== null);
    const name = kind.toUpperCase().replace(/S$/, all === 1 ? "" : "s");
    return [known ? `${amount(left)} of ${amount(all)} ${name} free` : `${amount(all)} ${name}`];
  });
}

/** The nodes, each with its engines, and behind them a place for engines that are on none. */
export function nodesOf({ nodes, engines }) {
  const known = new Set(nodes.map(({ id }) => id));
  const homeless = engines.filter(({ node }) => !known.has(node));
  const cards = nodes.map((node) => ({
    ...node,
    engines: engines.filter((engine) => engine.node === node.id),
  }));
  return homeless.length ? [...cards, { id: "", engines: homeless }] : cards;
}

/** How many engines of a model are ready, and what the cluster says of it. */
export function modelRow({ name, wanted, ready, message }) {
  const short = ready < wanted;
  const state = short ? (ready ? "short" : "failed") : "ready";
  return h(
    "li",
    { "data-state": state },
    h(
      "div",
      { class: "row" },
      h("h3", {}, name),
      h("span", { class: "state" }, `${ready} of ${wanted} ${wanted === 1 ? "engine" : "engines"} ready`),
    ),
    message ? h("p", { class: short ? "error" : "hint" }, message) : null,
  );
}

/** A node with its engines; without an address: those that have no node. */
export function nodeCard(node) {
  const engines = node.engines.map(engineRow);
  if (node.address === undefined) {
    return h("li", { class: "card" }, h("h3", {}, "On no node yet"), h("ul", { class: "engines" }, engines));
  }
  const { address, alive, head, labels } = node;
  const chips = [
    head ? h("span", { class: "mark" }, "head") : null,
    ...labels.map((label) => h("span", {}, label)),
  ];
  return h(
    "li",
    { class: "card", "aria-label": address },
    h(
      "div",
      { class: "row", "data-state": alive ? "ready" : "failed" },
      h("h3", {}, address),
      h("span", { class: "state" }, alive ? "alive" : "dead"),
    ),
    alive ? h("p", { class: "hint" }, free([node]).join(" · ")) : null,
    h("p", { class: "chips" }, chips),
    h("ul", { class: "engines" }, engines),
  );
}

function engineRow(engine) {
  const { id, model, state, reason } = engine;
  return h(
    "li",
    { "data-state": DOTS[state] ?? state, title: id },
    h("div", { class: "row" }, h("span", {}, model), h("span", { class: "state" }, state)),
    h("p", { class: "hint" }, facts(engine)),
    reason ? h("p", { class: "error" }, reason) : null,
  );
}

function facts({ running, waiting, gpu, ram }) {
  return [
    running === null ? null : `${running} running`,
    waiting ? `${waiting} waiting` : null,
    gpu ? `${size(gpu)} GPU` : null,
    ram ? `${size(ram)} RAM` : null,
  ]
    .filter(Boolean)
    .join(" · ");
}
