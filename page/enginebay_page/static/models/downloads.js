// Downloads from the hub: several at once, stopped and resumed, remembered until the tab is closed.

import { events, lost } from "../api.js";
import { byId, h, setText } from "../dom.js";
import { duration, size } from "../format.js";
import { load, save } from "../store.js";

/** The list of them; `done()` when there is something new. */
export class Downloads {
  constructor({ done }) {
    this.done = done;
    this.rows = [];
    for (const { body, title } of load("downloads", [])) {
      this.#add(body, title).say("Stopped when the page was closed.");
    }
  }

  /** Download what `body` of /v1/download asks for, called `title` here. */
  start(body, title) {
    const same = this.rows.find((row) => row.title === title && !row.running);
    if (same) this.#remove(same);
    this.#add(body, title).run();
  }

  #add(body, title) {
    const row = new Row(body, title, {
      done: () => {
        this.#save();
        this.done();
      },
      dismiss: () => this.#remove(row),
    });
    this.rows.push(row);
    byId("downloads").append(row.element);
    this.#save();
    return row;
  }

  #remove(row) {
    row.element.remove();
    this.rows = this.rows.filter((each) => each !== row);
    this.#save();
  }

  /** Those that can be resumed; a token is not kept. */
  #save() {
    const unfinished = this.rows.filter(({ finished }) => !finished);
    save("downloads", unfinished.map(({ title, body: { token: _, ...body } }) => ({ title, body })));
  }
}

class Row {
  constructor(body, title, { done, dismiss }) {
    this.body = body;
    this.title = title;
    this.done = done;
    this.running = false;
    this.finished = false;
    this.aborting = null;
    const button = (label, onclick) =>
      h("button", { type: "button", "aria-label": `${label} ${title}`, onclick }, label);
    this.stop = button("Stop", () => this.aborting.abort());
    this.resume = button("Resume", () => this.run());
    this.dismiss = button("Dismiss", dismiss);
    this.progress = h("progress", { max: 1, hidden: true, "aria-label": `Download of ${title}` });
    this.message = h("p", { class: "hint", role: "status" });
    this.element = h(
      "li",
      { class: "card" },
      h("div", { class: "row" }, h("h3", {}, title), this.stop, this.resume, this.dismiss),
      this.progress,
      this.message,
    );
    this.#showState();
  }

  /** Download, or go on where it was stopped. */
  async run() {
    this.running = true;
    this.aborting = new AbortController();
    this.began = null;
    this.#showState();
    this.say("Asking the hub…");
    try {
      const body = { ...this.body, stream: true };
      for await (const said of events("v1/download", body, this.aborting.signal)) this.#follow(said);
      if (!this.finished) throw lost();
    } catch (error) {
      if (error.name === "AbortError") this.say("Stopped.");
      else this.say(error.message, "error");
    }
    this.running = false;
    this.#showState();
    if (this.finished) this.done();
  }

  say(words, kind = "hint") {
    this.message.className = kind;
    setText(this.message, words);
  }

  #showState() {
    this.stop.hidden = !this.running;
    this.resume.hidden = this.running || this.finished;
    this.dismiss.hidden = this.running;
    this.progress.hidden = true; // until it is known how much there is
  }

  #follow({ status, file, completed, total, completed_files, files, download_path: folder }) {
    this.finished = status === "finished";
    const now = performance.now();
    this.began ??= { at: now, completed };
    this.progress.hidden = !total;
    if (total) this.progress.value = completed / total;
    const doing = [
      `${size(completed)} of ${size(total)}`,
      files > 1 ? `${completed_files} of ${files} files` : null,
      speedWords(completed - this.began.completed, now - this.began.at, total - completed),
      file,
    ];
    this.say(this.finished ? `Downloaded to ${folder}` : doing.filter(Boolean).join(" · "));
  }
}

/** How fast it is and how long it takes yet, once that can be told. */
function speedWords(bytes, milliseconds, left) {
  if (milliseconds < 2000 || !bytes) return null;
  const speed = (bytes / milliseconds) * 1000;
  return `${size(speed)}/s, ${duration(left / speed)} left`;
}
