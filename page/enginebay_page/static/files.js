// Texts as files of the user's machine.

import { h } from "./dom.js";

/** Have the browser save `text` as a file of this name. */
export function saveFile(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** A button with which the user chooses a file of JSON; `chosen(value, name)` gets what is in it. */
export function openButton(label, chosen, failed) {
  const input = h("input", { type: "file", accept: ".json,application/json", hidden: true });
  input.ariaLabel = label;
  input.addEventListener("change", async () => {
    const [file] = input.files;
    input.value = ""; // the same file can be chosen again
    try {
      chosen(parsed(await file.text(), file.name), file.name);
    } catch (error) {
      failed(error.message);
    }
  });
  return [h("button", { type: "button", onclick: () => input.click() }, label), input];
}

function parsed(text, name) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${name} is not valid JSON: ${error.message}`);
  }
}
