// The panel that saves the conversation as a file and opens one.

import { byId, h, setText } from "../dom.js";
import { openButton, saveFile } from "../files.js";
import { fromJson, toJson, toMarkdown } from "./transcript_files.js";

/** `current()`: the conversation with its model and system prompt; `opened(chat)`: another one. */
export function transferPanel({ current, opened }) {
  const said = h("p", { class: "hint", role: "status" });
  function say(words, kind = "hint") {
    said.className = kind;
    setText(said, words);
  }
  function save(ending, text, type) {
    const time = new Date().toISOString().slice(0, 16).replace("T", " ").replace(":", ".");
    saveFile(`chat ${time}.${ending}`, text, type);
    say("");
  }
  const open = (value, name) => {
    const chat = fromJson(value);
    opened(chat);
    say(`${name}: ${chat.messages.length} messages.`);
  };
  byId("transfer").append(
    h(
      "div",
      { class: "row" },
      h("button", { type: "button", onclick: () => save("md", toMarkdown(current()), "text/markdown") }, "Save as Markdown"),
      h("button", { type: "button", onclick: () => save("json", toJson(current()), "application/json") }, "Save as JSON"),
      openButton("Open JSON", open, (words) => say(words, "error")),
    ),
    h("p", { class: "hint" }, "JSON has the messages as the API has them. A file that is opened takes the place of this chat."),
    said,
  );
}
