// The chat: the conversation on the screen, and the box one writes in.

import { byId, h, setText } from "../dom.js";
import { Pace } from "../pace.js";
import { load, save } from "../store.js";
import { Attachments } from "./attachments.js";
import { Conversation } from "./conversation.js";
import { LibraryPanel } from "./library_panel.js";
import { PLURALS } from "./media.js";
import { MessageView } from "./message.js";
import { panels } from "./panels.js";
import { Params } from "./params.js";
import { TemplateChoice } from "./template.js";
import { transferPanel } from "./transfer.js";

const NEAR = 80; // pixels from the end that still count as reading along

/**
 * The chat of the page; `askForKey(reason)` is called when the server wants a key, `changed()` when
 * a model uses another template.
 */
export class Chat {
  constructor({ askForKey, changed }) {
    this.params = new Params(byId("params"));
    this.views = new Map();
    this.growing = new Pace((answer) => this.#showAnswer(answer));
    this.askForKey = askForKey;
    this.picker = byId("model");
    this.takes = new Map();
    this.continuing = new Set();
    this.admin = false;
    this.template = new TemplateChoice({ changed });
    this.attachments = new Attachments({
      say: notice,
      show: (change) => this.#readingAlong(change),
    });
    this.conversation = new Conversation({
      model: () => this.model,
      continues: () => this.continuing.has(this.model),
      fields: () => this.params.fields(),
      system: () => this.params.system,
      changed: (what, detail) => this.#changed(what, detail),
    });
    this.library = new LibraryPanel({
      current: (kind) => (kind === "system" ? this.params.system : byId("prompt").value),
      insert: (prompt) => this.#insert(prompt),
    });
    this.#wire();
    this.#showList();
  }

  /** The name of the chosen model; empty before any is known. */
  get model() {
    return this.picker.value;
  }

  /** Offer the models of these cards, and keep the one that is chosen. */
  offer({ cards, admin }) {
    this.takes = new Map(cards.map(({ id, architecture }) => [id, architecture?.input_modalities]));
    const continues = ({ architecture, chat }) => architecture && chat === false; // it generates text
    this.continuing = new Set(cards.filter(continues).map(({ id }) => id));
    this.admin = admin;
    this.#offerNames(cards);
    this.#offerMedia();
    this.#offerTemplates();
  }

  #offerNames(cards) {
    const lies = ({ source, state }) => source === "folder" && state === "unloaded";
    const names = (some) => some.map(({ id }) => id);
    const [ready, lying] = [names(cards.filter((card) => !lies(card))), names(cards.filter(lies))];
    const offered = JSON.stringify([ready, lying]);
    if (offered === this.offered) return;
    this.offered = offered;
    const chosen = this.picker.value || load("model", "");
    const options = (some) => some.map((value) => h("option", { value }, value));
    const folder = h("optgroup", { label: "In the model folder" }, options(lying));
    this.picker.replaceChildren(...options(ready), ...(lying.length ? [folder] : []));
    if ([...ready, ...lying].includes(chosen)) this.picker.value = chosen;
  }

  /** Say how far a model is that is loaded for the answer. */
  follow(models) {
    const answer = this.conversation.messages.at(-1);
    const model = models.find(({ id }) => id === answer?.model);
    if (!this.conversation.busy || !model) return;
    answer.loading = model.state === "loading" ? model.progress : null;
    this.#changed("answer", answer);
  }

  #wire() {
    const { conversation } = this;
    const prompt = byId("prompt");
    panels((change) => this.#readingAlong(change));
    transferPanel({
      current: () => ({ model: this.model, system: this.params.system, messages: conversation.messages }),
      opened: ({ model, system, messages }) => {
        if ([...this.picker.options].some(({ value }) => value === model)) this.#choose(model);
        this.params.system = system;
        conversation.open(messages);
      },
    });
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    prompt.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      byId("composer").requestSubmit();
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !event.target.closest("dialog")) conversation.stop();
    });
    byId("transcript").addEventListener("load", () => this.#toEnd(), true); // a picture has its size
    byId("stop").addEventListener("click", () => conversation.stop());
    byId("new-chat").addEventListener("click", () => {
      conversation.clear();
      notice("");
      prompt.focus();
    });
    this.picker.addEventListener("change", () => this.#choose(this.picker.value));
  }

  #choose(model) {
    this.picker.value = model;
    save("model", model);
    this.#offerMedia();
    this.#offerTemplates();
  }

  /** Put a prompt where it belongs: a message behind what the box has. */
  #insert({ kind, text }) {
    if (kind === "system") {
      this.params.system = text;
      notice("The system prompt is set.");
      return;
    }
    const prompt = byId("prompt");
    prompt.value = [prompt.value.trimEnd(), text].filter(Boolean).join("\n\n");
    prompt.focus();
  }

  /** Send what is in the box, with what is attached; wait for files that are being read. */
  async #send() {
    const { attachments, conversation } = this;
    await attachments.reading;
    const prompt = byId("prompt");
    const empty = !prompt.value.trim() && !attachments.items.length;
    if (empty || conversation.busy || !attachments.fit) return;
    notice("");
    const text = prompt.value;
    prompt.value = "";
    conversation.send(text, attachments.take());
  }

  #offerMedia() {
    const takes = this.takes.get(this.model);
    this.attachments.offer(this.model, takes && Object.keys(PLURALS).filter((k) => takes.includes(k)));
  }

  #offerTemplates() {
    this.template.offer(this.model, { continues: this.continuing.has(this.model), admin: this.admin });
  }

  #changed(what, detail) {
    if (what === "list") this.#showList();
    else if (what === "refused") this.askForKey(detail.message);
    else if (what === "unkept") notice(`Too much to keep: reloading the page loses ${detail} of the pictures and sounds.`);
    else this.growing.ask(detail);
  }

  #showAnswer(answer) {
    this.#readingAlong(() => this.views.get(answer)?.update());
    this.#showState();
  }

  #showList() {
    const { messages } = this.conversation;
    const views = new Map();
    messages.forEach((message, index) => {
      const actions = this.#actions(message);
      views.set(message, this.views.get(message) ?? new MessageView(message, actions));
    });
    this.views = views;
    const transcript = byId("transcript");
    const hadFocus = transcript.contains(document.activeElement);
    const elements = [...views.values()].map((view) => view.element);
    for (const shown of [...transcript.children]) if (!elements.includes(shown)) shown.remove();
    elements.forEach((element, at) => {
      if (transcript.children[at] !== element) {
        transcript.insertBefore(element, transcript.children[at] ?? null);
      }
    });
    this.#toEnd();
    this.#showState();
    if (hadFocus && !transcript.contains(document.activeElement)) this.#control().focus();
  }

  #actions(message) {
    const { conversation } = this;
    const index = () => conversation.messages.indexOf(message);
    return {
      edit: (text) => conversation.edit(index(), text),
      remove: () => conversation.remove(index()),
      retry: () => conversation.retry(index()),
      endThinking: () => conversation.endThinking(index()),
      answerCalls: (results) => conversation.answerCalls(index(), results),
    };
  }

  #showState() {
    const { busy } = this.conversation;
    const hadFocus = [byId("send"), byId("stop")].includes(document.activeElement);
    byId("send").hidden = busy;
    byId("stop").hidden = !busy;
    if (hadFocus) this.#control().focus();
  }

  /** What a user wants next, as far as is known. */
  #control() {
    return byId(this.conversation.busy ? "stop" : "prompt");
  }

  /** Do what makes the conversation longer or its place smaller, and stay at its end if that is where the user is. */
  #readingAlong(change) {
    const { scrollTop, scrollHeight, clientHeight } = byId("scroller");
    change();
    if (scrollHeight - scrollTop - clientHeight < NEAR) this.#toEnd();
  }

  #toEnd() {
    byId("scroller").scrollTop = byId("scroller").scrollHeight;
  }
}

const notice = (words) => setText(byId("notice"), words);
