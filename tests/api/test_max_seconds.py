"""Answers that may take so long, in every API. ENG-11"""

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from enginebay.testing import ScriptedChat, ScriptedEngine
from tests.support import Server, engine_backend, plugins_with, scripted_config, serve

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "hi"}]
ENDLESS = 2**40


def engine() -> ScriptedEngine:
    return ScriptedEngine(
        lambda prompt, index: ("a line\n" for _ in count()), context_length=ENDLESS
    )


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serve(scripted_config(), plugins_with(scripted=engine_backend(engine))) as running:
        yield running


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("limit", [{"max_seconds": 0.01}, {"t_max_predict_ms": 10}])
def test_it_ends_with_length(server: Server, stream: bool, limit: dict[str, Any]) -> None:
    for path, body in ((CHAT, {"messages": USER}), (TEXT, {"prompt": "hi"})):
        answer = server.http.post(path, json={**body, **limit, "n": 2, "stream": stream})
        assert answer.status_code == 200, answer.text
        assert "x-unsupported-params" not in answer.headers
        ends, said = [], 0
        for event in answer.text.split("\n\n") if stream else [answer.text]:
            data = event.removeprefix("data: ")
            for choice in json.loads(data)["choices"] if data.startswith("{") else ():
                if choice["finish_reason"]:
                    ends.append((choice["finish_reason"], choice.get("stop_reason")))
                said += "a line" in json.dumps(choice)
        assert ends == [("length", "max_seconds")] * 2
        assert said >= 2  # what was said by then is kept


def test_nothing_goes_on(server: Server) -> None:
    server.http.post(CHAT, json={"messages": USER, "max_seconds": 0.01})
    assert server.http.get("/v1/requests").json()["data"] == []


@pytest.mark.wing("messages", "ollama", "responses")
def test_other_apis(server: Server) -> None:
    asked = {"model": "scripted", "max_seconds": 0.01}
    body = {**asked, "max_tokens": 2**30, "messages": USER}
    assert server.http.post("/v1/messages", json=body).json()["stop_reason"] == "max_tokens"
    response = server.http.post("/v1/responses", json={**asked, "input": "hi"}).json()
    assert response["status"] == "incomplete"
    ollama = {"model": "scripted", "stream": False, "options": {"max_seconds": 0.01}}
    told = server.http.post("/api/chat", json={**ollama, "messages": USER}).json()
    assert told["done_reason"] == "length"


def test_from_the_config() -> None:
    config = scripted_config(sampling={"max_seconds": 0.01})
    with serve(config, plugins_with(scripted=engine_backend(engine))) as server:
        choice = server.http.post(CHAT, json={"messages": USER}).json()["choices"][0]
        assert choice["stop_reason"] == "max_seconds"
        explained = server.http.post(f"{CHAT}/explain", json={"messages": USER}).json()
        assert explained["max_seconds"] == 0.01
        off = {"messages": USER, "max_seconds": 0, "max_tokens": 9}
        assert server.http.post(f"{CHAT}/explain", json=off).json()["max_seconds"] is None


def test_a_model_that_takes_messages() -> None:
    create = engine_backend(lambda: ScriptedChat("a\n" for _ in range(10**6)))
    with serve(scripted_config(), plugins_with(scripted=create)) as server:
        answer = server.http.post(CHAT, json={"messages": USER, "max_seconds": 0.01})
        choice = answer.json()["choices"][0]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("length", "max_seconds")


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_seconds", -1), ("max_seconds", "x"), ("t_max_predict_ms", -5), ("max_seconds", 1e9)],
)
def test_bad_values(server: Server, field: str, value: Any) -> None:
    answer = server.http.post(CHAT, json={"messages": USER, field: value})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


def test_tokens_a_second_are_another_thing(server: Server) -> None:
    """text-generation-webui's `max_tokens_second` slows a stream down; it ends nothing."""
    answer = server.http.post(
        CHAT, json={"messages": USER, "max_tokens_second": 5, "max_tokens": 20}
    )
    assert answer.headers["x-unsupported-params"] == "max_tokens_second"
    assert answer.json()["choices"][0].get("stop_reason") is None
