"""Answers that repeat themselves, in every API. ENG-4"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import Server, plugins_with, scripted, scripted_config, serve

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "hi"}]
SAYS = "Well: " + "abc" * 100
TABLE = "| a | b |\n" * 20


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """The first choice repeats itself, others do not."""

    def said(prompt: str, index: int) -> list[str]:
        if "table" in prompt:
            return [TABLE]
        return list(SAYS) if not index else [f"{n}," for n in range(100)]

    with serve(scripted_config(), plugins_with(scripted=scripted(said))) as running:
        yield running


@pytest.mark.parametrize(
    ("asked", "tokens"),
    [
        ({"loop_detect_window": 12}, 18),
        ({"repetition_detection": {"max_pattern_size": 5, "min_count": 4}}, 18),
        ({"repetition_detection": {"max_pattern_size": 3, "min_count": 5, "odd": None}}, 21),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_it_ends_with_stop(
    server: Server, asked: dict[str, Any], tokens: int, stream: bool
) -> None:
    for path, body in ((CHAT, {"messages": USER}), (TEXT, {"prompt": "hi"})):
        sent = {**body, **asked, "n": 2, "stream": stream, "max_tokens": 200}
        answer = server.http.post(path, json=sent)
        assert answer.status_code == 200, answer.text
        assert "x-unsupported-params" not in answer.headers
        texts, ends = {0: "", 1: ""}, {}
        for event in answer.text.split("\n\n") if stream else [answer.text]:
            data = event.removeprefix("data: ")
            for choice in json.loads(data)["choices"] if data.startswith("{") else ():
                said = choice.get("delta") or choice.get("message") or {}
                texts[choice["index"]] += choice.get("text") or said.get("content") or ""
                if choice["finish_reason"]:
                    ends[choice["index"]] = choice["finish_reason"], choice.get("stop_reason")
        assert texts[0] == SAYS[:tokens]
        assert ends == {0: ("stop", "repetition"), 1: ("length", None)}  # the other goes on
        assert len(texts[1]) == 200


def test_off_by_default(server: Server) -> None:
    body = {"messages": USER, "loop_detect_window": 0, "repetition_detection": {}}
    for sent in ({"messages": USER}, body):
        answer = server.http.post(CHAT, json=sent)
        assert answer.json()["choices"][0]["message"]["content"] == SAYS


def test_not_before_min_tokens_nor_in_what_a_constraint_demands(server: Server) -> None:
    body = {"messages": USER, "loop_detect_window": 8}
    pattern = {"guided_regex": "Well: (abc){20}"}
    answer = server.http.post(CHAT, json={**body, **pattern}).json()["choices"][0]
    assert answer["message"]["content"] == SAYS[: 6 + 60]
    assert answer["finish_reason"] == "stop"
    assert answer.get("stop_reason") is None
    free = {"guided_regex": "Well: (abc){5}[abc]*"}  # may end behind the fifth
    answer = server.http.post(CHAT, json={**body, **free}).json()["choices"][0]
    assert answer["message"]["content"] == SAYS[: 6 + 15]
    assert answer["stop_reason"] == "repetition"


def test_tables_may_be_repetitions(server: Server) -> None:
    """A table with the same row over and over is one; a longer window allows it."""
    user = [{"role": "user", "content": "table"}]
    for window, whole in ((60, False), (400, True)):
        body = {"messages": user, "loop_detect_window": window}
        choice = server.http.post(CHAT, json=body).json()["choices"][0]
        assert (choice["message"]["content"] == TABLE) == whole


@pytest.mark.wing("messages", "ollama", "responses")
def test_other_apis(server: Server) -> None:
    asked = {"model": "scripted", "loop_detect_window": 12}
    messages = server.http.post("/v1/messages", json={**asked, "max_tokens": 99, "messages": USER})
    assert messages.json()["stop_reason"] == "end_turn"
    response = server.http.post("/v1/responses", json={**asked, "input": "hi"}).json()
    assert response["status"] == "completed"
    ollama = {"model": "scripted", "stream": False, "options": {"loop_detect_window": 12}}
    told = server.http.post("/api/chat", json={**ollama, "messages": USER}).json()
    assert told["message"]["content"] == SAYS[:18]
    assert told["done_reason"] == "stop"


def test_from_the_config() -> None:
    config = scripted_config(sampling={"loop_detect_window": 12})
    with serve(config, plugins_with(scripted=scripted(list(SAYS)))) as server:
        choice = server.http.post(CHAT, json={"messages": USER}).json()["choices"][0]
        assert choice["message"]["content"] == SAYS[:18]


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"loop_detect_window": -1}, "loop_detect_window"),
        ({"loop_detect_window": 10**6}, "loop_detect_window"),
        ({"loop_detect_window": "x"}, "loop_detect_window"),
        ({"repetition_detection": 5}, "repetition_detection"),
        ({"repetition_detection": {"max_pattern_size": 3}}, "repetition_detection.min_count"),
        (
            {
                "repetition_detection": {
                    "max_pattern_size": 3,
                    "min_pattern_size": 4,
                    "min_count": 2,
                }
            },
            "repetition_detection.min_pattern_size",
        ),
    ],
)
def test_bad_values(server: Server, asked: dict[str, Any], param: str) -> None:
    answer = server.http.post(CHAT, json={"messages": USER, **asked})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
