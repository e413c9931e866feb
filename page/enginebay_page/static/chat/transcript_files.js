// A conversation as a file: Markdown to read, JSON in the form of requests to keep.

import { prettyArguments, toWire } from "./answer.js";

const NAMES = { system: "System", user: "You", assistant: "Assistant", tool: "Tool result" };

/** The conversation as requests have it: `messages` can be sent to any server with this API. */
export function toJson({ model, system, messages }) {
  const wire = messages.map(toWire);
  const all = system ? [{ role: "system", content: system }, ...wire] : wire;
  return JSON.stringify({ model, messages: all }, null, 2);
}

export function toMarkdown({ system, messages }) {
  const all = system ? [{ role: "system", content: system }, ...messages] : messages;
  return `${all.map(section).join("\n\n")}\n`;
}

function section({ role, content, reasoning, model, media = [], toolCalls = [] }) {
  const quoted = reasoning?.trim().replaceAll(/^/gm, "> ");
  return [
    `## ${NAMES[role]}${model ? ` (${model})` : ""}`,
    quoted ? `> *Reasoning*\n>\n${quoted}` : "",
    ...media.map(({ name }) => `*Attached: ${name}*`),
    content.trim(),
    ...toolCalls.map((call) => `Calls \`${call.name}\`:\n\n${fenced(prettyArguments(call.arguments))}`),
  ]
    .filter(Boolean)
    .join("\n\n");
}

function fenced(text) {
  const longest = (text.match(/`+/g) ?? []).reduce((most, { length }) => Math.max(most, length), 2);
  const fence = "`".repeat(longest + 1);
  return `${fence}json\n${text}\n${fence}`;
}

/**
 * What a JSON file has, one of these or of other programs: its system prompt and its messages as
 * conversations have them. Throws an error with words for the user.
 */
export function fromJson(value) {
  const wire = Array.isArray(value) ? value : value?.messages;
  if (!Array.isArray(wire)) throw new Error("There is no list of messages in this file.");
  const messages = wire.map((each, at) => {
    try {
      return fromWire(each);
    } catch (error) {
      throw new Error(`messages[${at}]: ${error.message}`);
    }
  });
  const system = messages[0]?.role === "system" ? messages.shift().content : "";
  for (const { role, toolCallId } of messages) {
    const answered = messages.find(({ toolCalls }) => toolCalls?.some(({ id }) => id === toolCallId));
    if (role === "tool" && answered) answered.answered = true;
  }
  return { model: value.model, system, messages };
}

function fromWire(wire) {
  const role = wire?.role === "developer" ? "system" : wire?.role;
  if (!Object.hasOwn(NAMES, role)) throw new Error(`role ${JSON.stringify(wire?.role)} is not known.`);
  const parts = partsOf(wire.content ?? "");
  const content = parts.filter(({ text }) => text).map(({ text }) => text).join("\n\n");
  if (role === "system") return { role, content };
  if (role === "tool") return { role, content, toolCallId: String(wire.tool_call_id ?? "") };
  if (role === "user") return { role, content, media: parts.filter(({ url }) => url) };
  const { tool_calls: calls, reasoning: named, reasoning_content: thought = named } = wire;
  if (!Array.isArray(calls ?? [])) throw new Error("tool_calls is no list.");
  const toolCalls = (calls ?? []).map(callOf);
  return { role, content, reasoning: String(thought ?? ""), toolCalls, state: "done" };
}

function callOf(call) {
  const { name = "", arguments: written = "" } = call?.function ?? {};
  const text = typeof written === "string" ? written : JSON.stringify(written);
  return { id: String(call?.id ?? ""), name: String(name), arguments: text };
}

function partsOf(content) {
  if (typeof content === "string") return [{ text: content }];
  if (!Array.isArray(content)) throw new Error("content is neither a text nor a list of parts.");
  return content.map((part) => {
    if (typeof part?.text === "string") return { text: part.text };
    const { image_url: image, input_audio: audio } = part ?? {};
    if (image?.url?.startsWith("data:image/")) return { kind: "image", name: "picture", url: image.url };
    if (audio?.data) return { kind: "audio", name: "sound", url: `data:audio/${audio.format};base64,${audio.data}` };
    throw new Error(`a part of type ${JSON.stringify(part?.type)} cannot be shown here.`);
  });
}
