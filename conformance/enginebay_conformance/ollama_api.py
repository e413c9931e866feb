"""Checks of `/api/*`, Ollama's API."""

import json
import re

import httpx2

from enginebay_conformance.endpoint import Endpoint, Json, answered
from enginebay_conformance.events import ask, asked, asked_or_refused
from enginebay_conformance.expect import expect
from enginebay_conformance.run_checks import check

CHAT, GENERATE = "/api/chat", "/api/generate"
_TIMES = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


def _body(server: Endpoint, **fields: object) -> Json:
    """A small request: greedy, and short unless the fields say otherwise."""
    story = [{"role": "user", "content": "Tell me a story about a train."}]
    options = {"num_predict": 24, "temperature": 0}
    return {"model": server.model, "messages": story, "options": options, **fields}


def _lines(response: httpx2.Response) -> list[Json]:
    """The lines of a stream, each of which has to be an object."""
    text = answered(response).text
    expect(text.endswith("\n"), "the stream does not end with a line")
    return [json.loads(line) for line in text.removesuffix("\n").split("\n")]


@check("OLL-1", "OLL-3", "OLL-4")
def ollama_streams_lines(server: Endpoint) -> None:
    """Without `stream` it streams: lines of JSON, of which the last is done and has the times."""
    lines = _lines(ask(server, CHAT, _body(server)))
    done = [line.get("done") for line in lines]
    expect(done == [False] * (len(lines) - 1) + [True], f"done is {done}")
    last = lines[-1]
    for name in _TIMES:
        value = last.get(name)
        expect(type(value) is int and value >= 0, f"{name} is {value!r}")
    counts = [last.get("prompt_eval_count"), last.get("eval_count")]
    expect(all(type(count) is int and count > 0 for count in counts), f"the counts are {counts}")
    reason = last.get("done_reason")
    expect(reason in ("stop", "length"), f"done_reason is {reason!r}")


@check("OLL-12")
def ollama_streamed_is_whole(server: Endpoint) -> None:
    """The lines joined are the whole answer; one that `num_predict` cuts off ends with `length`."""
    whole = asked(server, CHAT, _body(server, stream=False))
    lines = _lines(ask(server, CHAT, _body(server)))
    for key in ("content", "thinking"):
        text = whole["message"].get(key) or ""
        streamed = "".join(line["message"].get(key) or "" for line in lines)
        expect(streamed == text, f"{key} is {streamed!r} streamed and {text!r} whole")
    if whole["eval_count"] >= 24:
        expect(whole["done_reason"] == "length", f"done_reason is {whole['done_reason']!r}")


@check("OLL-10", optional="prompts")
def ollama_generates(server: Endpoint) -> None:
    """`/api/generate` answers a prompt, with `raw` one that no template has been put around."""
    options = {"num_predict": 8, "temperature": 0}
    body = {"model": server.model, "prompt": "Once upon a time", "options": options}
    plain = asked(server, GENERATE, {**body, "stream": False})
    expect(isinstance(plain.get("response"), str), f"the answer is {plain}")
    raw = asked_or_refused(server, GENERATE, {**body, "stream": False, "raw": True})
    fewer = raw["prompt_eval_count"]
    expect(fewer < plain["prompt_eval_count"], f"{fewer} tokens without a template")


@check("OLL-6", "OLL-15")
def ollama_errors_are_texts(server: Endpoint) -> None:
    """An error is a text under `error`: a model that is not there, one that is missing."""
    missing = server.post(CHAT, _body(server, model="no/such/model"))
    ask(server, CHAT, _body(server, options={"num_predict": 1}))
    nameless = server.post(CHAT, {"messages": []})
    for response, status in ((missing, 404), (nameless, 400)):
        expect(response.status_code == status, f"{response.status_code}: {response.text[:100]}")
        error = response.json().get("error")
        expect(isinstance(error, str), f"an error is {error!r}")


@check("OLL-7", optional="grammars")
def ollama_format_is_enforced(server: Endpoint) -> None:
    """`format` with a schema gives an answer by that schema."""
    schema = {"type": "object", "properties": {"n": {"enum": [7]}}, "required": ["n"]}
    strict = {**schema, "additionalProperties": False}
    options = {"num_predict": 100, "temperature": 0}
    body = _body(server, format=strict, stream=False, options=options)
    answer = asked_or_refused(server, CHAT, body)
    content = answer["message"]["content"]
    expect(json.loads(content) == {"n": 7}, f"the answer is {content!r}")


@check("OLL-13", "OLL-14", "OLL-19")
def ollama_lists_its_models(server: Endpoint) -> None:
    """The tags have the model, `show` knows it, with `:latest` too; the version is numeric."""
    ask(server, CHAT, _body(server, options={"num_predict": 1}))
    models = answered(server.http.get("/api/tags")).json()["models"]
    card = next((card for card in models if card["name"] == server.model), None)
    expect(card is not None, f"the tags are {[card['name'] for card in models]}")
    digest = str((card or {}).get("digest"))
    expect(bool(re.fullmatch(r"[0-9a-f]{64}", digest)), f"the digest is {digest!r}")
    for name in (server.model, f"{server.model}:latest"):
        shown = asked(server, "/api/show", {"model": name})
        expect("completion" in shown["capabilities"], f"it can {shown['capabilities']}")
    version = answered(server.http.get("/api/version")).json()["version"]
    expect(bool(re.fullmatch(r"\d+\.\d+\.\d+", version)), f"the version is {version!r}")


CHECKS = (
    ollama_streams_lines,
    ollama_streamed_is_whole,
    ollama_generates,
    ollama_errors_are_texts,
    ollama_format_is_enforced,
    ollama_lists_its_models,
)
