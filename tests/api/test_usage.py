"""What answers say of tokens and times, and in which event."""

import json
import math
import time
from typing import Any

import pytest

from tests.conftest import ServeScripted
from tests.support import Server

HELLO = ["Hel", "lo ", "there"]
USER: Any = [{"role": "user", "content": "hi"}]
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
TIMES = {
    "e2e_latency_s",
    "prefill_tokens_per_s",
    "decode_tokens_per_s",
    "time_to_first_token_s",
    "time_per_output_token_s",
}


def events(server: Server, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    lines = server.http.post(path, json={**body, "stream": True}).text.splitlines()
    assert lines[-2] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2] if line]


@pytest.mark.parametrize(("path", "asked"), [(CHAT, {"messages": USER}), (TEXT, {"prompt": "hi"})])
def test_times(serve_scripted: ServeScripted, path: str, asked: dict[str, Any]) -> None:
    # WEB-26 WEB-27 WEB-28 WEB-29 WEB-30 WEB-34
    server = serve_scripted(HELLO)
    usage = server.http.post(path, json=asked).json()["usage"]
    streamed = events(server, path, {**asked, "stream_options": {"include_usage": True}})
    for extra in (usage["extra"], streamed[-1]["usage"]["extra"]):
        assert set(extra) == TIMES
        assert all(isinstance(value, float) and math.isfinite(value) for value in extra.values())
        assert all(value >= 0 for value in extra.values())
        assert extra["e2e_latency_s"] >= extra["time_to_first_token_s"] > 0


@pytest.mark.parametrize(("path", "asked"), [(CHAT, {"messages": USER}), (TEXT, {"prompt": "hi"})])
def test_chunks_without_usage_say_so(
    serve_scripted: ServeScripted, path: str, asked: dict[str, Any]
) -> None:
    """As OpenAI's do, and only where usage is asked for."""
    server = serve_scripted(["a", "b", "c", "d"])
    *chunks, last = events(server, path, {**asked, "stream_options": {"include_usage": True}})
    assert [chunk["usage"] for chunk in chunks] == [None] * len(chunks)
    assert last["usage"]["completion_tokens"] == 5
    assert not any("usage" in chunk for chunk in events(server, path, asked))


def test_times_of_an_answer_without_tokens(serve_scripted: ServeScripted) -> None:
    """Nothing is divided by zero: NaN and Infinity are not JSON."""
    # WEB-34
    server = serve_scripted(HELLO)
    body = {"prompt": "hi", "max_tokens": 0, "echo": True}
    usage = server.http.post(TEXT, json=body).json()["usage"]
    assert usage["completion_tokens"] == 0
    assert usage["extra"]["decode_tokens_per_s"] == 0
    assert usage["extra"]["time_per_output_token_s"] == 0


def test_latency_breakdown_is_not_claimed(serve_scripted: ServeScripted) -> None:
    # WEB-33: what a step is made of is the engine's, which does not say
    server = serve_scripted(HELLO)
    response = server.http.post(CHAT, json={"messages": USER, "enable_latency_breakdown": True})
    assert response.headers["x-unsupported-params"] == "enable_latency_breakdown"
    assert "latencyBreakdown" not in response.json()["usage"]["extra"]


def test_created_and_fingerprint(serve_scripted: ServeScripted) -> None:
    # WEB-1 WEB-3 WEB-7
    before = int(time.time())
    server = serve_scripted(HELLO)
    create = server.openai.chat.completions.create
    first, second = (create(model="scripted", messages=USER) for _ in range(2))
    assert first.id != second.id
    assert before <= first.created <= time.time()
    assert first.system_fingerprint
    assert first.system_fingerprint == second.system_fingerprint
    chunks = create(model="scripted", messages=USER, stream=True)
    assert {chunk.system_fingerprint for chunk in chunks} == {first.system_fingerprint}
    other = serve_scripted(HELLO, options={}, name="other", path="/elsewhere")
    answer = other.openai.chat.completions.create(model="other", messages=USER)
    assert answer.system_fingerprint != first.system_fingerprint


def test_continuous_usage(serve_scripted: ServeScripted) -> None:
    # VLLM-42 VLLM-44 VLLM-71
    server = serve_scripted(lambda prompt, index: ["a", "b"][: index + 1])
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"messages": USER, "n": 2, "stream_options": options}
    *chunks, last = events(server, CHAT, body)
    prompt = len("<user>hi\n<assistant>")
    assert all(chunk["usage"]["prompt_tokens"] == prompt for chunk in chunks)
    for index in (0, 1):
        own = [c["usage"] for c in chunks if c["choices"][0]["index"] == index]
        counts = [usage["completion_tokens"] for usage in own]
        assert counts[0] == 0
        assert counts == sorted(counts)
        assert counts[-1] == index + 2
        assert all(u["total_tokens"] == prompt + u["completion_tokens"] for u in own)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize("options", [{"continuous_usage_stats": True}, {}])
def test_continuous_usage_needs_usage(
    serve_scripted: ServeScripted, options: dict[str, Any]
) -> None:
    # VLLM-72
    server = serve_scripted(HELLO)
    for path, asked in ((CHAT, {"messages": USER}), (TEXT, {"prompt": "x"})):
        chunks = events(server, path, {**asked, "stream_options": options})
        assert not any("usage" in chunk for chunk in chunks)


def test_usage_counts_every_prompt_once(serve_scripted: ServeScripted) -> None:  # LF-28
    # TAB-83 TAB-17
    server = serve_scripted(["ok"])
    body = {"prompt": ["abc", "de"], "n": 3, "stream_options": {"include_usage": True}}
    usage = events(server, TEXT, body)[-1]["usage"]
    assert usage["prompt_tokens"] == 5
    assert usage["completion_tokens"] == 6 * 3
    assert usage["total_tokens"] == 5 + 6 * 3


@pytest.mark.parametrize(("path", "asked"), [(CHAT, {"messages": USER}), (TEXT, {"prompt": "hi"})])
def test_usage_with_the_last_finish(
    serve_scripted: ServeScripted, path: str, asked: dict[str, Any]
) -> None:
    # TAB-27 TAB-28 TAB-29 TAB-26
    server = serve_scripted(HELLO, server={"usage_with_finish": True})
    body = {**asked, "n": 2, "stream_options": {"include_usage": True}}
    *chunks, last = events(server, path, body)
    [choice] = last["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice.get("delta", {}) == {}
    assert choice.get("text", "") == ""
    assert last["usage"]["completion_tokens"] == 2 * (len("Hello there") + 1)
    assert last["id"] == chunks[0]["id"]
    finishes = [c["choices"][0] for c in chunks if c["choices"][0]["finish_reason"]]
    assert [finish["index"] for finish in finishes] == [1 - choice["index"]]
    assert [chunk["usage"] for chunk in chunks] == [None] * len(chunks)
    # without usage nothing is withheld
    chunks = events(server, path, asked)
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_cached_tokens(demo: Server) -> None:
    # VLLM-46 VLLM-74 WEB-24
    body: Any = {
        "model": "enginebay-demo",
        "messages": [{"role": "user", "content": "How long is the way to the cached tokens?"}],
        "max_tokens": 2,
        "temperature": 0,
    }
    first = demo.openai.chat.completions.create(**body).usage
    second = demo.openai.chat.completions.create(**body).usage
    *_, last = demo.openai.chat.completions.create(
        **body, stream=True, stream_options={"include_usage": True}
    )
    assert first
    for usage in (second, last.usage):
        assert usage
        assert usage.prompt_tokens == first.prompt_tokens
        assert usage.prompt_tokens_details
        assert usage.prompt_tokens_details.cached_tokens == first.prompt_tokens - 1
