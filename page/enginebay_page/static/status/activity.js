// The plots of what the server does.

import { byId } from "../dom.js";
import { Plot } from "./plot.js";

const whole = (value) => value.toFixed(0);
const short = (value) => (value >= 100 ? whole(value) : String(Number(value.toFixed(1))));
const percent = (value) => `${(value * 100).toFixed(0)} %`;
const seconds = (value) => (value < 1 ? `${(value * 1000).toFixed(0)} ms` : `${short(value)} s`);

/** The plots in the page, drawn from a `History`. */
export class Activity {
  constructor() {
    this.generated = new Plot("Tokens/s", { format: short, smallest: 10 });
    this.requests = new Plot("Requests", { format: whole, smallest: 2 });
    this.firstToken = new Plot("First token", { format: seconds, smallest: 0.1, dots: true });
    this.kv = new Plot("KV cache", { format: percent });
    const plots = [this.generated, this.requests, this.firstToken, this.kv];
    byId("plots").replaceChildren(...plots.map((plot) => plot.element));
  }

  show(history) {
    const { span, firstTokens } = history;
    const now = history.points.at(-1);
    this.generated.draw([history.line("generated")], span, short(now.generated ?? 0));
    const waiting = now.waiting ? `, ${now.waiting} waiting` : "";
    const both = [history.line("running"), history.line("waiting")];
    this.requests.draw(both, span, `${now.running} running${waiting}`);
    const dots = firstTokens.map((each) => [each.at, each.seconds]);
    this.firstToken.draw([dots], span, dots.length ? seconds(dots.at(-1)[1]) : "–");
    this.kv.element.hidden = now.kv === null;
    if (now.kv !== null) this.kv.draw([history.line("kv")], span, percent(now.kv));
  }
}
