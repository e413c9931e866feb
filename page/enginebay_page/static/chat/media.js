// Pictures and sounds of a message: read from files, shown, written into a request.

import { h } from "../dom.js";

const SIDE = 2048; // pixels; a picture that is longer or wider is scaled down
const BYTES = 2_000_000; // a picture that has more is sent as a JPEG
const SENT_AS_THEY_ARE = ["image/png", "image/jpeg", "image/webp", "image/gif"];
const FORMATS = { mpeg: "mp3", wave: "wav", "x-wav": "wav", "vnd.wave": "wav" };

export const PLURALS = { image: "pictures", audio: "sounds" };

/** The kind of media that a file is called, of those that messages have here; else undefined. */
export const kindOf = (file) => Object.keys(PLURALS).find((kind) => file.type.startsWith(`${kind}/`));

/** A file as an item of a message, `url` with its bytes. Throws an error with words for the user. */
export async function readItem(file) {
  const kind = kindOf(file);
  const blob = kind === "image" ? await fitting(file) : file;
  return { kind, name: file.name, url: await dataUrl(blob) };
}

/** The picture itself, or a smaller one. */
async function fitting(file) {
  const picture = await createImageBitmap(file).catch(() => {
    throw new Error(`${file.name} cannot be read as a picture.`);
  });
  const scale = Math.min(1, SIDE / Math.max(picture.width, picture.height));
  const small = scale === 1 && file.size <= BYTES;
  if (small && SENT_AS_THEY_ARE.includes(file.type)) return file;
  const [width, height] = [picture.width, picture.height].map((n) => Math.ceil(n * scale));
  const canvas = new OffscreenCanvas(width, height);
  const pen = canvas.getContext("2d");
  pen.imageSmoothingQuality = "high";
  pen.fillStyle = "white"; // where the picture is transparent, which a JPEG cannot be
  pen.fillRect(0, 0, width, height);
  pen.drawImage(picture, 0, 0, width, height);
  picture.close();
  return await canvas.convertToBlob({ type: "image/jpeg", quality: 0.9 });
}

function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error(`${blob.name} cannot be read: ${reader.error.message}`));
    reader.readAsDataURL(blob);
  });
}

/** A list of items; with a button for each if `remove(item)` is given. */
export function mediaList(items, label, remove) {
  const button = (item) =>
    h(
      "button",
      { type: "button", "aria-label": `Remove ${item.name}`, onclick: () => remove(item) },
      "×",
    );
  const entries = items.map((item) => h("li", {}, shown(item), remove ? button(item) : null));
  return h("ul", { class: "media", "aria-label": label }, entries);
}

function shown({ kind, name, url }) {
  if (!url) return h("span", {}, `${name}: no longer kept, and not sent`);
  return kind === "image" ? h("img", { src: url, alt: name, title: name }) : h("span", {}, name);
}

/** The content of a message as requests have it: items first, then the text. */
export function contentOf({ content, media = [] }) {
  const parts = media.filter(({ url }) => url).map(partOf);
  if (!parts.length) return content;
  return content ? [...parts, { type: "text", text: content }] : parts;
}

function partOf({ kind, url }) {
  if (kind === "image") return { type: "image_url", image_url: { url } };
  const [, type, data] = /^data:audio\/([^;,]*).*?,(.*)$/s.exec(url);
  return { type: "input_audio", input_audio: { data, format: FORMATS[type] ?? type } };
}
