// A small plot: lines, or dots, over the last minutes.

import { h, setText } from "../dom.js";
import { niceTop } from "../format.js";

const HEIGHT = 72;

/** A figure with a heading, the value of now in words, and a canvas. */
export class Plot {
  constructor(title, { format, smallest = 1, dots = false }) {
    this.format = format;
    this.smallest = smallest;
    this.dots = dots;
    this.value = h("output", {}, "–");
    this.canvas = h("canvas", { height: HEIGHT, "aria-hidden": "true" });
    this.element = h(
      "figure",
      { class: "plot" },
      h("figcaption", {}, h("span", {}, title), this.value),
      this.canvas,
    );
    this.drawn = null;
    new ResizeObserver(() => this.#redraw()).observe(this.canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#redraw());
  }

  /** Draw lines of `[at, value]`, the first one strongest, and say `words`. */
  draw(lines, span, words) {
    setText(this.value, words);
    this.drawn = [lines, span];
    this.#redraw();
  }

  #redraw() {
    if (!this.drawn || !this.canvas.clientWidth) return;
    const [lines, [start, end]] = this.drawn;
    const { canvas } = this;
    const width = canvas.clientWidth;
    const scale = devicePixelRatio;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(HEIGHT * scale);
    const pen = canvas.getContext("2d");
    const style = getComputedStyle(canvas);
    const values = lines.flat().map(([, value]) => value ?? 0);
    const top = niceTop(Math.max(this.smallest, ...values));
    const x = (at) => ((at - start) / (end - start)) * (width - 4) + 2;
    const y = (value) => HEIGHT - 2 - (value / top) * (HEIGHT - 18);
    pen.scale(scale, scale);
    this.#scale(pen, style, width, y(top), this.format(top));
    [...lines.entries()].reverse().forEach(([rank, line]) => {
      pen.strokeStyle = pen.fillStyle = style.getPropertyValue(rank ? "--second" : "--accent");
      if (this.dots) drawDots(pen, line, x, y);
      else for (const part of unbroken(line)) drawLine(pen, part, x, y, rank);
    });
  }

  #scale(pen, style, width, top, label) {
    pen.strokeStyle = style.getPropertyValue("--line");
    pen.fillStyle = style.getPropertyValue("--muted");
    pen.font = `11px ${style.fontFamily}`;
    for (const height of [top, HEIGHT - 2]) {
      pen.beginPath();
      pen.moveTo(0, Math.round(height) + 0.5);
      pen.lineTo(width, Math.round(height) + 0.5);
      pen.stroke();
    }
    pen.fillText(label, 2, top - 4);
  }
}

function drawLine(pen, points, x, y, rank) {
  pen.lineWidth = 1.5;
  pen.lineJoin = "round";
  pen.beginPath();
  for (const [at, value] of points) pen.lineTo(x(at), y(value));
  pen.stroke();
  if (rank) return;
  pen.lineTo(x(points.at(-1)[0]), y(0));
  pen.lineTo(x(points[0][0]), y(0));
  pen.globalAlpha = 0.14;
  pen.fill();
  pen.globalAlpha = 1;
}

function drawDots(pen, points, x, y) {
  for (const [at, value] of points) {
    pen.beginPath();
    pen.arc(x(at), y(value), 2, 0, 2 * Math.PI);
    pen.fill();
  }
}

/** The stretches of a line without gaps: of nulls, or of time, as when the tab was hidden. */
function unbroken(line) {
  const parts = [];
  let last = null;
  for (const point of line) {
    const goesOn = last !== null && point[0] - last < 10;
    last = point[1] === null ? null : point[0];
    if (last === null) continue;
    if (goesOn) parts.at(-1).push(point);
    else parts.push([point]);
  }
  return parts;
}
