// The conversation: its messages, and the one answer that may be under way.

import { ApiError, call, events, lost } from "../api.js";
import { load, save } from "../store.js";
import { addChunk, asText, newAnswer, toWire } from "./answer.js";

const CONTINUED_TOKENS = 256; // a base model seldom ends its text by itself
const ROOM = 4_000_000; // characters for pictures and sounds; most browsers keep 5 million in all

/**
 * `model()` gives whom to ask, `continues()` whether it has no chat template and continues text,
 * `fields()` what else requests have, `system()` the system prompt;
 * `changed` is called with `list` when messages came or went, `answer` when one grew, `refused` for
 * a 401, `unkept` with the number of pictures and sounds that a reload of the page will lose.
 */
export class Conversation {
  constructor({ model, continues, fields, system, changed }) {
    this.model = model;
    this.continues = continues;
    this.fields = fields;
    this.system = system;
    this.changed = changed;
    this.messages = load("messages", []);
    this.aborting = null;
  }

  get busy() {
    return this.aborting !== null;
  }

  /** Say something and have it answered. */
  async send(content, media) {
    if (this.busy) return;
    this.messages.push({ role: "user", content, media });
    await this.#answer();
  }

  /** Answer anew what stands before the message at `index`. */
  async retry(index) {
    if (this.busy) return;
    this.messages.length = index;
    await this.#answer();
  }

  /** Change a message; what a user changes is sent again, and what followed it is gone. */
  async edit(index, content) {
    if (this.busy) return;
    this.messages[index] = { ...this.messages[index], content };
    if (this.messages[index].role === "user") await this.retry(index + 1);
    else this.#listChanged();
  }

  remove(index) {
    if (this.busy) return;
    const calls = this.messages[index].toolCalls?.length ?? 0; // a result needs its call
    let after = index + 1;
    while (calls && this.messages[after]?.role === "tool") after += 1;
    this.messages.splice(index, after - index);
    this.#listChanged();
  }

  /** Tell the model what its tools said, and have it go on. */
  async answerCalls(index, results) {
    if (this.busy) return;
    const message = this.messages[index];
    message.answered = true;
    const said = results.map((content, at) => ({
      role: "tool",
      content,
      toolCallId: message.toolCalls[at].id,
    }));
    this.messages.splice(index + 1, this.messages.length, ...said);
    await this.#answer();
  }

  clear() {
    this.open([]);
  }

  /** Go on with these messages in place of those that are there. */
  open(messages) {
    this.stop();
    this.messages = messages;
    this.#listChanged();
  }

  /** Close the connection: the server then aborts the request. */
  stop() {
    this.aborting?.abort();
  }

  /** Have the model end its thought and answer. What speaks against it is said beside the answer. */
  async endThinking(index) {
    const answer = this.messages[index];
    answer.ending = "Ending the thought…";
    this.changed("answer", answer);
    try {
      await call(`v1/requests/${encodeURIComponent(answer.id)}/end_reasoning`, { method: "POST" });
    } catch (error) {
      answer.ending = error.status === 404 ? "" : error.message; // 404: ended, or not known here
    }
    this.changed("answer", answer);
  }

  async #answer() {
    const answer = newAnswer(this.model());
    const aborting = (this.aborting = new AbortController());
    const history = this.messages.filter((each) => !isEmpty(each)).map(toWire);
    this.messages.push(answer);
    this.#listChanged();
    try {
      const system = this.system();
      const messages = system ? [{ role: "system", content: system }, ...history] : history;
      const stream = { stream: true, stream_options: { include_usage: true } };
      const model = answer.model ? { model: answer.model } : {};
      const fields = { ...model, ...this.fields(), ...stream };
      const [path, body] = this.continues()
        ? ["v1/completions", { max_tokens: CONTINUED_TOKENS, ...fields, prompt: asText(messages) }]
        : ["v1/chat/completions", { ...fields, messages }];
      for await (const chunk of events(path, body, aborting.signal)) {
        addChunk(answer, chunk);
        this.changed("answer", answer);
      }
      if (!answer.finish) throw lost();
      answer.state = "done";
    } catch (error) {
      answer.state = error.name === "AbortError" ? "stopped" : "failed";
      if (answer.state === "failed") answer.error = wordsFor(error);
      if (error.status === 401) this.changed("refused", error);
    } finally {
      this.aborting = null;
      this.#save();
      this.changed("answer", answer);
    }
  }

  #listChanged() {
    this.#save();
    this.changed("list");
  }

  #save() {
    const messages = this.messages.filter((each) => !isEmpty(each));
    const items = messages.flatMap(({ media = [] }) => media).filter(({ url }) => url);
    const kept = [newest(items), new Set()].find((some) =>
      save("messages", messages.map((each) => keeping(each, some))),
    );
    const lost = items.length - (kept?.size ?? 0);
    if (lost) this.changed("unkept", lost);
  }
}

/** The last of the items, as many as there is room for. */
function newest(items) {
  let room = ROOM;
  return new Set(items.toReversed().filter(({ url }) => (room -= url.length) >= 0));
}

/** A message without the bytes of items but these. */
function keeping(message, kept) {
  if (!message.media?.length) return message;
  const media = message.media.map((item) => (kept.has(item) ? item : { ...item, url: undefined }));
  return { ...message, media };
}

/** An answer that failed before it said anything, or has not begun. */
const isEmpty = ({ role, content, reasoning, toolCalls }) =>
  role === "assistant" && !content && !reasoning && !toolCalls.length;

function wordsFor(error) {
  if (!(error instanceof ApiError)) return error.message;
  const intro = {
    401: "The server requires an API key: ",
    403: "This key is not allowed to do that: ",
    429: "Too many requests: ",
    503: "The model cannot answer now: ",
  }[error.status];
  const words = `${intro ?? ""}${error.message}`;
  if (error.status !== 429 || !error.retryAfter || words.includes("try again")) return words;
  return `${words.replace(/\.?$/, ".")} Try again in ${error.retryAfter} s.`;
}
