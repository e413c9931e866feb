// How one message of the conversation looks, and its buttons.

import { copyButton, h, setText } from "../dom.js";
import { renderMarkdown } from "../markdown.js";
import { prettyArguments, usageWords } from "./answer.js";
import { editor } from "./editor.js";
import { mediaList } from "./media.js";
import { resultForm } from "./tool_results.js";

const NAMES = { user: "You", assistant: "Assistant", tool: "Tool result", system: "System" };
const ENDINGS = {
  length: "Cut off: no room for more tokens (max_tokens, or the model's context).",
  content_filter: "Cut off by a content filter.",
  abort: "Cut off by the server: cancelled, its model was unloaded, or the server stopped.",
};
const NEAR = 40; // pixels from the end of a thought that still count as reading along
const GROWING = ["waiting", "thinking", "writing"];

/**
 * The element of a message, kept up to date by `update()`. `actions` are the conversation's:
 * `edit(text)`, `remove()`, `retry()`, `endThinking()`, `answerCalls(results)`.
 */
export class MessageView {
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    const { role } = message;
    this.model = h("small");
    this.body = h("div", { class: "said text" });
    this.reasoningText = h("div", { class: "text" });
    this.reasoning = h("details", { class: "reasoning", hidden: true }, h("summary"), this.reasoningText);
    this.reasoning.firstChild.addEventListener("click", () => (this.folded = true));
    this.calls = h("ol", { class: "calls", hidden: true });
    this.error = h("p", { class: "error", role: "alert", hidden: true });
    this.note = h("p", { class: "hint note" });
    this.endThinking = h("button", { type: "button", onclick: actions.endThinking }, "End thinking");
    this.buttons = h("div", { class: "buttons" });
    const own = role === "assistant" ? [this.calls, this.error] : [];
    const media = message.media?.length ? mediaList(message.media, "Sent with it") : null;
    this.content = h("div", {}, own.length ? this.reasoning : null, media, this.body, own);
    this.element = h(
      "li",
      { class: `message ${role}` },
      h("h3", {}, NAMES[role], " ", this.model),
      this.content,
      h("footer", {}, this.note, this.endThinking, this.buttons),
    );
    this.update();
    this.#addButtons();
  }

  update() {
    const { message } = this;
    const growing = GROWING.includes(message.state);
    this.element.setAttribute("aria-busy", growing);
    this.element.classList.toggle("growing", growing);
    setText(this.model, message.model ?? "");
    if (message.role === "assistant") renderMarkdown(this.body, message.content);
    else setText(this.body, message.content);
    this.#showReasoning();
    this.#showCalls(growing);
    setText(this.error, message.error ?? "");
    this.error.hidden = !message.error;
    setText(this.note, growing ? waitingWords(message) : noteWords(message));
    this.endThinking.hidden = message.state !== "thinking" || message.ending !== undefined;
    this.buttons.hidden = growing;
  }

  #showReasoning() {
    const { reasoning = "", state } = this.message;
    this.reasoning.hidden = !reasoning;
    if (!reasoning) return;
    const thinking = state === "thinking";
    setText(this.reasoning.firstChild, thinking ? "Thinking…" : "Reasoning");
    if (!this.folded) this.reasoning.open = thinking; // from the first click on it is the user's
    const { scrollTop, scrollHeight, clientHeight } = this.reasoningText;
    renderMarkdown(this.reasoningText, reasoning);
    const followed = scrollHeight - scrollTop - clientHeight < NEAR;
    if (thinking && followed) this.reasoningText.scrollTop = this.reasoningText.scrollHeight;
  }

  #showCalls(growing) {
    const { toolCalls = [] } = this.message;
    this.calls.hidden = !toolCalls.length;
    toolCalls.forEach((call, at) => {
      if (!this.calls.children[at]) {
        this.calls.append(h("li", {}, h("strong", {}), h("pre", { tabIndex: 0 })));
      }
      const [name, written] = this.calls.children[at].children;
      setText(name, call.name);
      setText(written, growing ? call.arguments : prettyArguments(call.arguments));
    });
    if (growing || !toolCalls.length || this.message.answered || this.form) return;
    this.form = resultForm(toolCalls, this.actions.answerCalls);
    this.content.append(this.form);
  }

  #addButtons() {
    const { message, actions } = this;
    const button = (label, onclick) =>
      h("button", { type: "button", class: "quiet", onclick }, label);
    if (message.role !== "tool") this.buttons.append(copyButton(() => message.content));
    if (message.role === "assistant") this.buttons.append(button("Regenerate", actions.retry));
    if (message.role !== "tool") this.buttons.append(button("Edit", () => this.#edit()));
    this.buttons.append(button("Delete", actions.remove));
  }

  #edit() {
    const { message, actions } = this;
    const label = message.role === "user" ? "Send again" : "Save";
    const done = (text) => {
      form.replaceWith(this.content);
      this.buttons.hidden = false;
      if (text !== null) actions.edit(text);
    };
    const form = editor(message.content, label, done);
    this.buttons.hidden = true;
    this.content.replaceWith(form);
    form.elements[0].focus();
  }
}

function waitingWords({ state, ending, loading = null }) {
  if (state === "thinking") return ["Thinking…", ending].filter(Boolean).join(" ");
  if (state === "writing") return "Writing…";
  if (loading === null) return "Waiting for the first token…";
  return `Loading the model: ${Math.round(loading * 100)} %`;
}

function noteWords(message) {
  const ending = message.state === "stopped" ? "Stopped." : ENDINGS[message.finish];
  return [ending, usageWords(message)].filter(Boolean).join(" ");
}
