// Tokens by day, as bars.

import { h, setText, svg } from "../dom.js";
import { exact, niceTop, short } from "../format.js";

const HEIGHT = 160;
const TOP = 16; // for the label of the scale
const BOTTOM = 18; // for the days
const PARTS = [
  ["completion", "completion"],
  ["fresh", "prompt"],
  ["cached", "prompt, cached"],
];

/** A figure with a drawing and its legend. */
export class DayBars {
  constructor() {
    this.drawing = svg("svg", { role: "img", height: HEIGHT });
    this.element = h(
      "figure",
      { class: "plot day-bars", hidden: true },
      h(
        "figcaption",
        {},
        h("span", {}, "Tokens a day"),
        PARTS.map(([part, words]) => h("span", { class: `legend ${part}` }, words)),
      ),
      this.drawing,
    );
    this.days = [];
    new ResizeObserver(() => this.#redraw()).observe(this.element);
  }

  /** Draw the rows of /v1/usage for so many days up to today, in UTC as the server counts. */
  draw(data, days) {
    const today = new Date().toISOString().slice(0, 10);
    const last = data.reduce((latest, { day }) => (day > latest ? day : latest), today);
    this.days = Array.from({ length: days }, (_, back) => dayBefore(last, days - 1 - back)).map(
      (day) => ({ day, ...counted(data.filter((each) => each.day === day)) }),
    );
    this.element.hidden = !data.length;
    this.#redraw();
  }

  #redraw() {
    const width = this.drawing.clientWidth;
    if (!width || !this.days.length) return;
    const top = niceTop(Math.max(10, ...this.days.map(({ total }) => total)));
    const step = width / this.days.length;
    const scale = (HEIGHT - TOP - BOTTOM) / top;
    const floor = HEIGHT - BOTTOM;
    const line = (y) => svg("line", { x1: 0, x2: width, y1: y + 0.5, y2: y + 0.5 });
    const bars = this.days.map((day, at) => bar(day, at * step, step, floor, scale));
    this.drawing.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.drawing.setAttribute("aria-label", `Tokens a day, at most ${exact(top)}`);
    this.drawing.replaceChildren(
      line(TOP),
      line(floor),
      text(short(top), 2, TOP - 4),
      text(this.days[0].day, 0, HEIGHT - 4),
      text(this.days.at(-1).day, width, HEIGHT - 4, "end"),
      ...bars,
    );
  }
}

function bar(day, left, step, floor, scale) {
  const width = Math.max(1, Math.min(step - 2, step * 0.8, 40));
  const x = left + (step - width) / 2;
  let y = floor;
  const rects = PARTS.map(([part]) => {
    const height = day[part] * scale;
    y -= height;
    return svg("rect", { class: part, x, y, width, height });
  });
  const words = `${day.day}: ${exact(day.completion)} completion, ${exact(day.fresh + day.cached)} prompt (${exact(day.cached)} cached)`;
  return svg("g", {}, svg("title", {}, words), rects);
}

function text(words, x, y, anchor = "start") {
  const element = svg("text", { x, y, "text-anchor": anchor });
  setText(element, words);
  return element;
}

function counted(rows) {
  const sum = (name) => rows.reduce((total, each) => total + (each[name] ?? 0), 0);
  const [prompt, cached] = [sum("prompt_tokens"), sum("cached_tokens")];
  const completion = sum("completion_tokens");
  return { completion, fresh: Math.max(0, prompt - cached), cached, total: prompt + completion };
}

const dayBefore = (day, days) =>
  new Date(Date.parse(`${day}T00:00:00Z`) - days * 86_400_000).toISOString().slice(0, 10);
