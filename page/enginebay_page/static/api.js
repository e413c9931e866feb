// Calls of the server. Paths are relative to the page, so that it works behind a proxy's prefix.

import { sseEvents } from "./sse.js";
import { apiKey } from "./store.js";

/** What went wrong, in words for the user; `status` 0: the server was not reached. */
export class ApiError extends Error {
  constructor(status, message, retryAfter = null) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

/** The answer of a stream that ended too early. */
export const lost = () =>
  new ApiError(0, "The connection was lost before the answer was complete.");

/** The response of a call that went well; throws `ApiError`, or AbortError when `signal` fires. */
export async function call(path, { method = "GET", body, signal } = {}) {
  const headers = {};
  if (apiKey.value) {
    if (/[^ -\xff]/.test(apiKey.value)) {
      throw new ApiError(401, "this API key is not valid: it has characters that cannot be sent");
    }
    headers.Authorization = `Bearer ${apiKey.value}`;
  }
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    const url = new URL(path, document.baseURI);
    response = await fetch(url, { method, headers, signal, body: JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server cannot be reached.");
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

/** The JSON answer of a call. */
export async function json(path, options) {
  const response = await call(path, options);
  try {
    return await response.json();
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
    throw new ApiError(0, "The answer is not JSON: a proxy sent it, or it was cut off.");
  }
}

/** The JSON events of a streamed answer, up to `[DONE]`; an error among them is thrown. */
export async function* events(path, body, signal) {
  const response = await call(path, { method: "POST", body, signal });
  try {
    for await (const data of sseEvents(response.body)) {
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new ApiError(response.status, wordsOf(event.error));
      yield event;
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof ApiError) throw error;
    throw lost();
  }
}

/** A name in a path, where it may hold slashes. */
export const pathOf = (id) => id.split("/").map(encodeURIComponent).join("/");

async function errorOf(response) {
  const seconds = Number.parseInt(response.headers.get("Retry-After"), 10);
  let words = `${response.status} ${response.statusText}`.trim();
  try {
    const body = await response.json();
    words = wordsOf(body.error ?? body.detail) || words;
  } catch {
    // not JSON, from a proxy say: the status must do
  }
  return new ApiError(response.status, words, Number.isNaN(seconds) ? null : seconds);
}

const wordsOf = (error) => String(error?.message ?? error ?? "");
