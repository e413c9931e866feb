// The limits of a key, and what they leave.

import { h } from "../dom.js";
import { duration, exact } from "../format.js";

/** Entries for `limits` of /v1/usage, where those that a key does not have are null. */
export function limitList(limits) {
  return Object.entries(limits)
    .filter(([, limit]) => limit)
    .map(([name, limit]) => entry(name.replaceAll("_", " "), limit));
}

function entry(name, { limit, remaining, reset_s: seconds }) {
  const again = remaining < limit && seconds > 0 ? `, all again in ${duration(seconds)}` : "";
  const words = `${name}: ${exact(remaining)} of ${exact(limit)} left${again}`;
  const props = { min: 0, max: limit, low: limit / 10, value: remaining, "aria-label": name };
  return h("li", {}, h("span", {}, words), h("meter", props));
}
