// One assistant message, as it grows.

import { contentOf } from "./media.js";

const DEEPEST = 32; // lists and objects in each other that arguments are shown with line breaks for

/** A message of the assistant without text yet. */
export function newAnswer(model) {
  return { role: "assistant", content: "", reasoning: "", toolCalls: [], state: "waiting", model };
}

/** Add what a chunk of a streamed chat completion, or of a completion, says to the answer. */
export function addChunk(answer, chunk) {
  if (chunk.id) answer.id = chunk.id;
  if (chunk.usage) answer.usage = chunk.usage;
  if (chunk.model) answer.model = chunk.model;
  const choice = chunk.choices?.[0];
  if (!choice) return;
  const delta = choice.delta ?? { content: choice.text }; // the latter of a completion
  const { content, reasoning_content: named, reasoning = named, tool_calls: calls } = delta;
  if (reasoning) answer.reasoning += reasoning;
  if (content) answer.content += content;
  for (const call of calls ?? []) addCall(answer.toolCalls, call);
  if (reasoning) answer.state = "thinking";
  else if (content || calls?.length) answer.state = "writing";
  if (choice.finish_reason) answer.finish = choice.finish_reason;
}

function addCall(calls, delta) {
  const call = (calls[delta.index] ??= { id: "", name: "", arguments: "" });
  call.id = delta.id ?? call.id;
  call.name += delta.function?.name ?? "";
  call.arguments += delta.function?.arguments ?? "";
}

/** A message as requests have it. */
export function toWire(message) {
  if (message.role !== "assistant") {
    const { role, toolCallId } = message;
    const content = contentOf(message);
    return toolCallId ? { role, content, tool_call_id: toolCallId } : { role, content };
  }
  const wire = { role: "assistant", content: message.content };
  if (message.reasoning) wire.reasoning_content = message.reasoning;
  if (message.toolCalls.length) {
    wire.tool_calls = message.toolCalls.map(({ id, name, arguments: written }) => ({
      id,
      type: "function",
      function: { name, arguments: written },
    }));
  }
  return wire;
}

/** The text of messages as requests have them, for a model that continues text. */
export function asText(messages) {
  const parts = ({ content }) => (typeof content === "string" ? [{ text: content }] : content);
  return messages.map((each) => parts(each).map(({ text = "" }) => text).join("")).join("\n");
}

/** JSON with line breaks, or the text itself if it is not JSON, or so deep that indents fill it. */
export function prettyArguments(text) {
  try {
    return depth(text) > DEEPEST ? text : JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** How deep lists and objects are in each other; brackets in strings count as well. */
function depth(text) {
  let [now, deepest] = [0, 0];
  for (const [bracket] of text.matchAll(/[[\]{}]/g)) {
    now += "[{".includes(bracket) ? 1 : -1;
    deepest = Math.max(deepest, now);
  }
  return deepest;
}

/** What an answer took, in words: tokens, their speed, the time to the first one. */
export function usageWords({ usage }) {
  if (!usage) return "";
  const reasoning = usage.completion_tokens_details?.reasoning_tokens;
  const cached = usage.prompt_tokens_details?.cached_tokens;
  const { decode_tokens_per_s: speed, time_to_first_token_s: first } = usage.extra ?? {};
  return [
    `prompt ${usage.prompt_tokens}${cached ? ` (${cached} cached)` : ""}`,
    `answer ${usage.completion_tokens}${reasoning ? ` (${reasoning} reasoning)` : ""}`,
    speed ? `${speed.toFixed(speed < 10 ? 1 : 0)} tokens/s` : null,
    first ? `first token ${first.toFixed(2)} s` : null,
  ]
    .filter(Boolean)
    .join(" · ");
}
