// Tries the AI SDK against a server and prints one JSON finding a line: {"client", "what", "seen",
// "works"}. The environment says where: SERVER, KEY, PICTURE, and MODULES, a folder `node_modules`.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";

const { KEY, MODULES, PICTURE, SERVER } = process.env;
const require = createRequire(`${MODULES}/`);
const { APICallError, Output, generateText, stepCountIs, streamText, tool } = require("ai");
const { createAnthropic } = require("@ai-sdk/anthropic");
const { createOpenAI } = require("@ai-sdk/openai");
const { z } = require("zod");

const SUM = "What is 3 plus 4?";
const WEATHER = "What is the weather in Paris?";

function check(holds, seen) {
  if (!holds) throw new Error(typeof seen === "string" ? seen : JSON.stringify(seen));
}

function weather() {
  return tool({
    description: "The current weather in a city.",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => ({ city, sky: "sunny", temperature: 21 }),
  });
}

function checkWeather(steps, text) {
  check(steps.length === 2, `${steps.length} steps: ${text}`);
  const [result] = steps[0].toolResults;
  check(result?.input.city === "Paris", steps[0].content);
  check(text.includes("21") || text.includes("sunny"), text);
  return `get_weather(${JSON.stringify(result.input)}), then ${JSON.stringify(text)}`;
}

async function failure(model) {
  try {
    await generateText({ model, prompt: SUM, maxRetries: 0 });
  } catch (error) {
    check(APICallError.isInstance(error), String(error));
    return `${error.statusCode}: ${error.message}`;
  }
  throw new Error("no error");
}

/** What both providers are tried with; `thinking` are the options that ask for thought. */
async function tryAll(step, provider, wrongKey, thinking) {
  const model = provider("enginebay-demo");
  const common = { model, maxRetries: 0, maxOutputTokens: 500 };

  let whole;
  await step("a wrong key", async () => {
    const seen = await failure(wrongKey("enginebay-demo"));
    check(seen.startsWith("401"), seen);
    return seen;
  });
  await step("a model that does not exist", async () => {
    const seen = await failure(provider("nope"));
    check(seen.startsWith("404") && seen.includes("nope"), seen);
    return seen;
  });
  await step("generateText", async () => {
    whole = await generateText({ ...common, prompt: SUM });
    const { text, usage, finishReason, warnings } = whole;
    check(text.includes("7"), text);
    check(finishReason === "stop", finishReason);
    check(usage.inputTokens > 0 && usage.outputTokens > 0, usage);
    return `${JSON.stringify(text)}, ${usage.inputTokens} + ${usage.outputTokens} tokens`;
  });
  await step("streamText", async () => {
    const streamed = streamText({ ...common, prompt: SUM });
    const pieces = [];
    for await (const part of streamed.fullStream) {
      if (part.type === "error") throw part.error;
      if (part.type === "text-delta") pieces.push(part.text);
    }
    check(pieces.join("") === whole.text, pieces);
    const usage = await streamed.usage;
    check(usage.outputTokens === whole.usage.outputTokens, usage);
    check((await streamed.finishReason) === "stop", await streamed.finishReason);
    return `${pieces.length} pieces of the same text, the same usage`;
  });
  await step("an answer that is cut", async () => {
    const { text, finishReason } = await generateText({
      ...common,
      prompt: "Tell me a story about a train.",
      maxOutputTokens: 10,
    });
    check(finishReason === "length" && text, finishReason);
    return `${JSON.stringify(text)}, ${finishReason}`;
  });
  await step("a conversation", async () => {
    const messages = [{ role: "user", content: "My name is Anna." }];
    const first = await generateText({ ...common, messages });
    messages.push(...first.response.messages, { role: "user", content: "What is my name?" });
    const { text } = await generateText({ ...common, messages });
    check(text.includes("Anna"), text);
    return JSON.stringify(text);
  });
  await step("a tool loop", async () => {
    const { steps, text } = await generateText({
      ...common,
      prompt: WEATHER,
      tools: { get_weather: weather() },
      stopWhen: stepCountIs(3),
    });
    return checkWeather(steps, text);
  });
  await step("a tool loop, streamed", async () => {
    const streamed = streamText({
      ...common,
      prompt: WEATHER,
      tools: { get_weather: weather() },
      stopWhen: stepCountIs(3),
    });
    const kinds = new Set();
    for await (const part of streamed.fullStream) {
      if (part.type === "error") throw part.error;
      kinds.add(part.type);
    }
    for (const kind of ["tool-input-start", "tool-input-delta", "tool-input-end", "tool-call"])
      check(kinds.has(kind), [...kinds].join());
    return checkWeather(await streamed.steps, await streamed.text);
  });
  await step("a forced tool", async () => {
    const { toolCalls } = await generateText({
      ...common,
      prompt: "Hello!",
      tools: { get_weather: weather() },
      toolChoice: { type: "tool", toolName: "get_weather" },
    });
    check(toolCalls.length === 1 && typeof toolCalls[0].input.city === "string", toolCalls);
    return JSON.stringify(toolCalls[0].input);
  });
  const schema = z.object({ sum: z.number().int(), easy: z.boolean() });
  await step("structured output", async () => {
    const output = Output.object({ schema });
    const result = await generateText({ ...common, prompt: SUM, output });
    check(typeof result.output.sum === "number", result.output);
    return JSON.stringify(result.output);
  });
  await step("structured output, streamed", async () => {
    const output = Output.object({ schema });
    const streamed = streamText({ ...common, prompt: SUM, output });
    let last, partial = 0;
    for await (last of streamed.partialOutputStream) partial += 1;
    check(typeof last?.sum === "number" && typeof last.easy === "boolean", last);
    return `${partial} partial objects, then ${JSON.stringify(last)}`;
  });
  const thinks = { ...common, model: provider("demo-thinking"), providerOptions: thinking };
  await step("reasoning", async () => {
    const { text, reasoningText } = await generateText({ ...thinks, prompt: SUM });
    check(reasoningText, `no reasoning; ${text}`);
    check(text.includes("7") && !text.includes("think"), text);
    return `thought ${JSON.stringify(reasoningText)}, said ${JSON.stringify(text)}`;
  });
  await step("reasoning, streamed", async () => {
    const streamed = streamText({ ...thinks, prompt: SUM });
    const thought = [];
    for await (const part of streamed.fullStream) {
      if (part.type === "error") throw part.error;
      if (part.type === "reasoning-delta") thought.push(part.text);
    }
    check(thought.join("").trim(), "no reasoning");
    check((await streamed.text).includes("7"), await streamed.text);
    return `${thought.length} pieces: ${JSON.stringify(thought.join(""))}`;
  });
  await step("reasoning between tools", async () => {
    const { steps, text } = await generateText({
      ...thinks,
      prompt: WEATHER,
      tools: { get_weather: weather() },
      stopWhen: stepCountIs(3),
    });
    check(steps[0].reasoningText, "no reasoning");
    return checkWeather(steps, text);
  });
  await step("a picture", async () => {
    const content = [
      { type: "text", text: "What is it?" },
      { type: "image", image: readFileSync(PICTURE) },
    ];
    const messages = [{ role: "user", content }];
    const { text } = await generateText({ ...common, model: provider("seer"), messages });
    check(text === "I see a red picture of 512 x 256.", text);
    return text;
  });
  await step("abort", async () => {
    const controller = new AbortController();
    const streamed = streamText({
      ...common,
      model: provider("storyteller"),
      prompt: "Tell me a story",
      maxOutputTokens: 20000,
      abortSignal: controller.signal,
    });
    let pieces = 0;
    for await (const part of streamed.fullStream) {
      if (part.type === "error") throw part.error;
      if (part.type === "text-delta" && ++pieces === 5) controller.abort();
    }
    check(pieces >= 5, `${pieces} pieces`);
    return `after ${pieces} pieces`;
  });
}

/** What only Responses have: the store. */
async function tryStore(step, provider) {
  const common = { model: provider("enginebay-demo"), maxRetries: 0, maxOutputTokens: 500 };
  await step("previousResponseId", async () => {
    const first = await generateText({ ...common, prompt: "My name is Anna." });
    const previousResponseId = first.providerMetadata.openai.responseId;
    const { text } = await generateText({
      ...common,
      prompt: "What is my name?",
      providerOptions: { openai: { previousResponseId } },
    });
    check(text.includes("Anna"), text);
    return JSON.stringify(text);
  });
  await step("a tool loop with store: false", async () => {
    const { steps, text } = await generateText({
      ...common,
      model: provider("demo-thinking"),
      prompt: WEATHER,
      tools: { get_weather: weather() },
      stopWhen: stepCountIs(3),
      providerOptions: {
        openai: { store: false, forceReasoning: true, reasoningSummary: "auto" },
      },
    });
    return checkWeather(steps, text);
  });
}

function stepsOf(client) {
  return async (what, attempt) => {
    const finding = { client, what, seen: "", works: false };
    try {
      finding.seen = (await attempt()) ?? "";
      finding.works = true;
    } catch (error) {
      finding.seen = String(error.responseBody ?? error.message ?? error);
    }
    console.log(JSON.stringify(finding));
  };
}

const baseURL = `${SERVER}/v1`;
const openai = createOpenAI({ baseURL, apiKey: KEY });
await tryAll(
  stepsOf("AI SDK, Responses"),
  openai,
  createOpenAI({ baseURL, apiKey: "sk-wrong" }),
  { openai: { forceReasoning: true, reasoningEffort: "medium", reasoningSummary: "auto" } },
);
await tryStore(stepsOf("AI SDK, Responses"), openai);
await tryAll(
  stepsOf("AI SDK, Messages"),
  createAnthropic({ baseURL, apiKey: KEY }),
  createAnthropic({ baseURL, apiKey: "sk-wrong" }),
  { anthropic: { thinking: { type: "enabled", budgetTokens: 1024 } } },
);
