"""How answers of Ollama's API look, streamed and whole."""

import http.client
import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.chat.answer.collector import Collector
from enginebay.chat.answer.logprobs import LogprobForm
from enginebay.chat.answer.usage import UsageCounter
from enginebay.contract.types import Delta, Update
from enginebay.plugins import Plugins
from enginebay_ollama.composer import LineComposer, chat_line
from tests.apis.ollama_support import (
    CALL,
    CHAT,
    GENERATE,
    WEATHER,
    ask,
    joined,
    lines,
    ollama_server,
    user,
)
from tests.support import Server

DURATIONS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")
ENDS = {"done_reason", "prompt_eval_count", "eval_count", *DURATIONS}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with ollama_server() as running:
        yield running


def stream(server: Server, text: str, **fields: Any) -> list[dict[str, Any]]:
    body = {"model": "scripted", "messages": user(text), **fields}
    return lines(server.http.post(CHAT, json=body))


@pytest.mark.parametrize("asked", ["hi", "think", "call", "call twice"])
def test_streamed_and_whole_answers_say_the_same(server: Server, asked: str) -> None:
    """OLL-1: without `stream` it streams. OLL-3: the last line, and only it, is done."""
    tools = {"tools": [WEATHER]}
    streamed, whole = stream(server, asked, **tools), ask(server, asked, **tools)
    assert [line["done"] for line in streamed] == [False] * (len(streamed) - 1) + [True]
    assert all(line.keys() >= ENDS if line["done"] else not ENDS & line.keys() for line in streamed)
    assert streamed[-1]["message"] == {"role": "assistant", "content": ""}
    message = {"thinking": "", "tool_calls": [], **whole["message"]}
    said = joined(streamed)
    for call in (*message["tool_calls"], *said["tool_calls"]):
        assert call.pop("id")
    assert said == message
    for name in ("done_reason", "prompt_eval_count", "eval_count", "model"):
        assert streamed[-1][name] == whole[name]


def test_durations_are_nanoseconds(server: Server) -> None:
    # OLL-4
    for end in (stream(server, "hi")[-1], ask(server, "think")):
        total, *parts = (end[name] for name in DURATIONS)
        assert all(isinstance(part, int) and part > 0 for part in parts)
        assert sum(parts) <= total + len(parts)
        assert 1000 < total < 600 * 10**9
    usage = server.openai.chat.completions.create(model="scripted", messages=user("hi"))  # type: ignore[arg-type]
    end = ask(server, "hi")
    assert usage.usage
    assert end["prompt_eval_count"] == usage.usage.prompt_tokens
    assert end["eval_count"] == usage.usage.completion_tokens


def test_one_line_a_write(server: Server) -> None:
    """OLL-2: each chunk of HTTP is one line, whatever it says."""
    address = server.url.removeprefix("http://")
    for fields in ({}, {"tools": [WEATHER]}):
        for asked in ("hi", "think", "call twice"):
            connection = http.client.HTTPConnection(address, timeout=60)
            body = json.dumps({"model": "scripted", "messages": user(asked), **fields})
            connection.request("POST", CHAT, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            assert answer.getheader("transfer-encoding") == "chunked"
            chunks = []
            while size := int(answer.fp.readline(), 16):
                chunks.append(answer.fp.read(size))
                assert answer.fp.readline() == b"\r\n"
            connection.close()
            assert len(chunks) >= 2
            for chunk in chunks:
                assert chunk.endswith(b"\n")
                assert chunk.count(b"\n") == 1
                assert json.loads(chunk)["model"] == "scripted"


def test_calls_are_whole_and_have_objects(server: Server) -> None:
    # OLL-5
    streamed = stream(server, "call twice", tools=[WEATHER])
    calling = [line for line in streamed if "tool_calls" in line["message"]]
    assert [line["message"]["content"] for line in calling] == ["", ""]
    calls = [call for line in calling for call in line["message"]["tool_calls"]]
    assert [call["function"] for call in calls] == [
        {"index": number, "name": "get_weather", "arguments": {"city": "Oslo"}}
        for number in range(2)
    ]
    assert len({call["id"] for call in calls}) == 2
    assert streamed[-1]["done_reason"] == "stop"
    kinds = ["call" if "tool_calls" in line["message"] else "text" for line in streamed[:-1]]
    assert kinds == sorted(kinds, reverse=True)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_call_that_is_cut_is_left_out(server: Server, streamed: bool) -> None:
    fields = {"tools": [WEATHER], "options": {"num_predict": len("Wait. ") + len(CALL) - 20}}
    if streamed:
        *said, end = stream(server, "call", **fields)
        message = joined(said)
    else:
        end = ask(server, "call", **fields)
        message = {"tool_calls": [], **end["message"]}
    assert message["tool_calls"] == []
    assert message["content"].strip() == "Wait."
    assert end["done_reason"] == "length"


def test_length_and_stop(server: Server) -> None:
    # OLL-12
    cut = ask(server, "hi", options={"num_predict": 3})
    assert (cut["done_reason"], cut["message"]["content"], cut["eval_count"]) == (
        "length",
        "Hel",
        3,
    )
    stopped = ask(server, "hi", options={"stop": [","]})
    assert (stopped["done_reason"], stopped["message"]["content"]) == ("stop", "Hello")
    for none in (-1, -2):
        whole = ask(server, "hi", options={"num_predict": none})
        assert whole["message"]["content"] == "Hello, world"


@pytest.mark.parametrize("path", [CHAT, GENERATE])
def test_an_error_later_is_a_line(server: Server, path: str) -> None:
    body = {"model": "scripted", "messages": user("fail"), "prompt": "fail"}
    body.pop("prompt" if path == CHAT else "messages")
    *said, last = lines(server.http.post(path, json=body))
    assert list(last) == ["error"]
    assert "the engine broke" in last["error"]
    assert not any(line["done"] for line in said)
    answer = server.http.post(path, json={**body, "stream": False})
    assert answer.status_code == 500
    assert answer.json() == {"error": "the engine broke"}


def test_thought_has_a_place_of_its_own(server: Server) -> None:
    # OLL-8
    assert ask(server, "think")["message"] == {
        "role": "assistant",
        "content": "Four.",
        "thinking": "Let me see.",
    }
    for line in stream(server, "think"):
        assert "<" not in line["message"]["content"] + line["message"].get("thinking", "")


def test_thought_is_in_its_place_whatever_the_config_has_for_others() -> None:
    with ollama_server(reasoning_field="content") as server:
        assert ask(server, "think")["message"]["thinking"] == "Let me see."
        assert ask(server, "think")["message"]["content"] == "Four."


def test_logprobs(server: Server) -> None:
    whole = ask(server, "hi", logprobs=True, top_logprobs=1)
    assert "".join(entry["token"] for entry in whole["logprobs"]) == "Hello, world"
    for entry in whole["logprobs"]:
        assert entry["logprob"] == 0
        assert [top["token"] for top in entry["top_logprobs"]] == [entry["token"]]
    streamed = stream(server, "hi", logprobs=True)
    told = [entry["token"] for line in streamed for entry in line.get("logprobs", ())]
    assert "".join(told) == "Hello, world"
    raw = {"model": "scripted", "prompt": "x", "raw": True, "stream": False, "logprobs": True}
    answer = server.http.post(GENERATE, json=raw).json()
    assert "".join(entry["token"] for entry in answer["logprobs"]) == answer["response"]


TEXT = f"<think>Hm, \n well</think>\n\nSo: \u00e9\U0001f600 {CALL}\n{CALL}"


@given(st.lists(st.integers(0, len(TEXT)), max_size=12))
def test_any_cut_of_the_text_gives_the_same_lines(cuts: list[int]) -> None:
    """Joined, the lines of a stream are the whole answer, wherever the engine's pieces end."""
    formats = Plugins()
    ends = sorted({0, *cuts, len(TEXT)})
    updates = []
    collector = Collector(
        formats.reasoning["think"].parser(inside=False),
        formats.tools["hermes"].parser({"get_weather": {}}),
        trim=True,
        new_call_id=iter(["call_a", "call_b"]).__next__,
    )
    for start, end in pairwise(ends):
        reason = "stop" if end == len(TEXT) else None
        delta = Delta(text=TEXT[start:end], token_ids=(1,), finish_reason=reason)  # type: ignore[arg-type]
        updates.append(Update(0, collector.feed(delta), collector.end if reason else None))

    def composer() -> LineComposer:
        return LineComposer("id", UsageCounter(), "m", chat_line, LogprobForm())

    streaming, whole = composer(), composer()
    frames = [frame for update in updates for frame in streaming.frames(update)]
    frames += streaming.ending()
    for update in updates:
        whole.add(update)
    message = json.loads(whole.whole_json())["message"]
    assert joined([json.loads(frame.json) for frame in frames]) == message
    assert message["thinking"] == "Hm, \n well"
    assert [call["id"] for call in message["tool_calls"]] == ["call_a", "call_b"]
