// The limits of a key, and what they leave.

import { h } from "../dom.js";
import { exact } from "../format.js";

/** Entries for `limits` of /v1/usage: a number each, or one with what remains of it. */
export function limitList(limits) {
  return Object.entries(limits ?? {})
    .map(([name, value]) => [name.replaceAll("_", " "), typeof value === "object" ? value : { limit: value }])
    .filter(([, value]) => typeof value?.limit === "number")
    .map(([name, { limit, remaining }]) => entry(name, limit, remaining));
}

function entry(name, limit, remaining) {
  if (typeof remaining !== "number") return h("li", {}, h("span", {}, `${name}: ${exact(limit)}`));
  const words = `${name}: ${exact(remaining)} of ${exact(limit)} left`;
  const meter = h("meter", { min: 0, max: limit, low: limit / 10, value: remaining, "aria-label": name });
  return h("li", {}, h("span", {}, words), meter);
}
