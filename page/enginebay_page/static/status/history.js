// The last minutes of the server, out of answers of /v1/stats.

const SECONDS = 300;

/** Points of all models together; `at` is the server's time, so clocks need not agree. */
export class History {
  constructor() {
    this.points = [];
    this.firstTokens = [];
    this.last = null;
  }

  add(stats) {
    const { time: at, models } = stats;
    const sum = (name) => models.reduce((total, model) => total + (model[name] ?? 0), 0);
    const used = models.map((model) => model.kv_usage).filter((value) => value !== null);
    const point = {
      at,
      running: sum("running"),
      waiting: sum("waiting"),
      generated: this.#rate(stats, "completion_tokens"),
      kv: used.length ? Math.max(...used) : null,
    };
    this.points = [...this.points.filter((each) => each.at > at - SECONDS && each.at < at), point];
    this.firstTokens = models
      .flatMap((model) => model.first_tokens)
      .filter((each) => each.at > at - SECONDS)
      .sort((a, b) => a.at - b.at);
    this.last = stats;
  }

  /** Tokens a second since the last answer; null when counting began anew meanwhile. */
  #rate({ time, models }, name) {
    const before = new Map(this.last?.models.map((model) => [model.id, model[name]]));
    const elapsed = time - this.last?.time;
    if (!(elapsed > 0)) return null;
    const gained = models.map((model) => model[name] - (before.get(model.id) ?? model[name]));
    return gained.some((tokens) => tokens < 0) ? null : gained.reduce((a, b) => a + b, 0) / elapsed;
  }

  /** The span that plots show, as seconds of the server's time. */
  get span() {
    const end = this.last?.time ?? 0;
    return [end - SECONDS, end];
  }

  /** `[at, value]` of a number of the points; a value may be null. */
  line(name) {
    return this.points.map((point) => [point.at, point[name]]);
  }
}
