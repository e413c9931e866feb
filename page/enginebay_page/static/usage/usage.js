// What a key has used, by model and day, and what its limits leave.

import { json } from "../api.js";
import { byId, h, setText } from "../dom.js";
import { exact, short } from "../format.js";
import { DayBars } from "./day_bars.js";
import { limitList } from "./limits.js";

const NO_KEY = "no key";
const ALL = "*"; // no key is called so
const SPANS = [7, 30, 90, 365];
const COUNTS = [
  ["requests", "Requests"],
  ["prompt_tokens", "Prompt tokens"],
  ["cached_tokens", "of them cached"],
  ["completion_tokens", "Completion tokens"],
];

/** The view; asked for when it is looked at. */
export class Usage {
  constructor() {
    this.keys = new Set();
    this.asking = 0;
    this.days = h(
      "select",
      {},
      SPANS.map((days) => h("option", { value: days, selected: days === 30 }, `${days} days`)),
    );
    this.key = h("select", {}, h("option", { value: ALL }, "all keys"));
    this.keyLabel = h("label", { hidden: true }, "Key ", this.key);
    this.totals = h("p", { role: "status" });
    this.error = h("p", { class: "error", role: "alert" });
    this.limits = h("ul", { class: "limits", "aria-label": "Limits" });
    this.bars = new DayBars();
    this.table = h("div", { class: "table", tabIndex: 0, role: "region", "aria-label": "By day and model" });
    for (const chosen of [this.days, this.key]) chosen.addEventListener("change", () => this.refresh());
    byId("usage").append(
      h(
        "div",
        { class: "row" },
        h("h2", {}, "Usage"),
        h("label", {}, "Last ", this.days),
        this.keyLabel,
        h("button", { type: "button", onclick: () => this.refresh() }, "Refresh"),
      ),
      this.error,
      this.totals,
      this.limits,
      this.bars.element,
      this.table,
    );
  }

  /** Whether the user may see the usage of all keys. */
  allow(admin) {
    this.keyLabel.hidden = !admin;
  }

  /** Another key has other numbers. */
  newKey() {
    this.keys.clear();
    this.key.replaceChildren(this.key.firstChild);
    if (document.body.dataset.view === "usage") this.refresh();
  }

  async refresh() {
    const asking = (this.asking += 1);
    const days = Number(this.days.value);
    const query = new URLSearchParams({ days });
    if (this.key.value !== ALL) query.set("key", this.key.value);
    try {
      const answer = await json(`v1/usage?${query}`);
      if (asking === this.asking) this.#show(answer, days);
      setText(this.error, "");
    } catch (error) {
      if (error.status === 404) byId("usage-link").hidden = true; // this server does not count
      setText(this.error, error.message);
    }
  }

  #show({ data, limits }, days) {
    this.#offerKeys(data);
    setText(this.totals, totalWords(data));
    this.limits.replaceChildren(...limitList(limits));
    this.bars.draw(data, days);
    this.table.replaceChildren(...(data.length ? [table(data)] : []));
  }

  #offerKeys(data) {
    const chosen = this.key.value;
    for (const { key } of data) this.keys.add(key ?? "");
    const options = [...this.keys].sort().map((name) => h("option", { value: name }, name || NO_KEY));
    this.key.replaceChildren(this.key.firstChild, ...options);
    this.key.value = chosen;
  }
}

const sum = (data, name) => data.reduce((total, each) => total + (each[name] ?? 0), 0);

function totalWords(data) {
  if (!data.length) return "Nothing was used in this time.";
  const [prompt, cached] = [sum(data, "prompt_tokens"), sum(data, "cached_tokens")];
  const share = prompt && cached ? ` (${Math.round((cached / prompt) * 100)} % cached)` : "";
  return [
    `${exact(sum(data, "requests"))} requests`,
    `${short(prompt)} prompt tokens${share}`,
    `${short(sum(data, "completion_tokens"))} completion tokens`,
  ].join(" · ");
}

/** The rows of the answer, the last day first; with keys where there are several. */
function table(data) {
  const several = new Set(data.map(({ key }) => key)).size > 1;
  const names = [["day", "Day"], ["model", "Model"], ...(several ? [["key", "Key"]] : [])];
  const rows = data.toSorted((a, b) => b.day.localeCompare(a.day) || a.model.localeCompare(b.model));
  const cells = (each) => [
    names.map(([name]) => h("td", {}, each[name] ?? NO_KEY)),
    COUNTS.map(([name]) => h("td", { class: "number" }, exact(each[name] ?? 0))),
  ];
  const heads = [
    names.map(([, words]) => h("th", { scope: "col" }, words)),
    COUNTS.map(([, words]) => h("th", { scope: "col", class: "number" }, words)),
  ];
  const totals = COUNTS.map(([name]) => h("td", { class: "number" }, exact(sum(data, name))));
  return h(
    "table",
    { class: "numbers" },
    h("thead", {}, h("tr", {}, heads.flat())),
    h("tbody", {}, rows.map((each) => h("tr", {}, cells(each).flat()))),
    h("tfoot", {}, h("tr", {}, h("th", { scope: "row", colSpan: names.length }, "Together"), totals)),
  );
}
