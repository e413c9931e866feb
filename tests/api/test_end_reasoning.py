"""Thought that is ended while it is being thought, in every API. OPS-8"""

import itertools
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from enginebay import (
    Backend,
    BackendSettings,
    Delta,
    EngineBackend,
    ReasoningBudget,
    ServingError,
)
from enginebay.testing import ScriptedChat, ScriptedEngine
from tests.api.test_queue import keys_of
from tests.support import (
    InlineBackend,
    Server,
    engine_backend,
    plugins_with,
    scripted_config,
    serve,
)

CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "hi"}]


class Thinker(ScriptedEngine):
    """Thinks until it is told to end that, then answers. Choices but the first only answer."""

    def __init__(self) -> None:
        super().__init__(self._says, context_length=2**40)
        self._told = False

    def step(self) -> Iterable[tuple[str, Delta | ServingError]]:
        time.sleep(0.001)  # an engine without an end that costs nothing would flood the event loop
        return super().step()

    def _says(self, prompt: str, index: int) -> Iterator[str]:
        if index:
            yield from itertools.repeat("a") if "endless" in prompt else "b"
            return
        if "answer" in prompt:
            yield from itertools.repeat("a")
        yield "<think>"
        for number in itertools.count():
            if self._told:
                break
            yield "hm " if number < 50 or "loud" in prompt else ""  # lest it grow without end
        yield "</think>Answer"

    def end_reasoning(self, request_id: str, budget: ReasoningBudget) -> int:
        ended = super().end_reasoning(request_id, budget)
        self._told = self._told or ended > 0
        return ended

    def add_request(self, request: Any) -> None:
        self._told = False
        super().add_request(request)


BACKENDS: dict[str, Callable[[BackendSettings], Backend]] = {
    "thread": lambda settings: EngineBackend(Thinker),
    "process": lambda settings: EngineBackend(Thinker, isolation="process"),
}


@pytest.fixture(scope="module", params=BACKENDS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    config = scripted_config(reasoning="think")
    keys = keys_of("a", "b")
    with serve(config, plugins_with(scripted=BACKENDS[request.param]), keys=keys) as running:
        yield running


def end(server: Server, id: str, key: str = "a") -> tuple[int, Any]:
    headers = {"x-api-key": key}
    answer = server.http.post(f"/v1/requests/{id}/end_reasoning", headers=headers)
    return answer.status_code, answer.json()


def streamed(
    server: Server, path: str, body: dict[str, Any], thinks: str = "hm", id: str = "thinker"
) -> str:
    """All that a stream says; its thought is ended as soon as there is some."""
    text, told = "", False
    headers = {"x-api-key": "a", "x-request-id": id}
    sent = {"model": "scripted", "stream": True, **body}
    with server.http.stream("POST", path, json=sent, headers=headers) as response:
        for line in response.iter_lines():
            text += f"{line}\n"
            if not told and thinks in line:
                told = True
                status, ended = end(server, response.headers["x-request-id"])
                assert status == 200, ended
                assert ended == {"id": id, "object": "request.reasoning", "ended": 1}
    return text


def said(text: str, field: str) -> str:
    events = [line[6:] for line in text.splitlines() if line.startswith("data: {")]
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    texts = [choice["delta"].get(field) or "" for choice in choices if not choice["index"]]
    return "".join(texts).strip()


def test_a_stream_goes_on_with_its_answer(server: Server) -> None:
    text = streamed(server, CHAT, {"messages": USER})
    assert said(text, "reasoning_content").startswith("hm hm")
    assert said(text, "content") == "Answer"
    assert text.rstrip().endswith("[DONE]")


def test_by_the_id_of_the_answer_and_with_a_message(server: Server) -> None:
    body = {"messages": USER, "reasoning_budget_message": " Enough.", "stream": True}
    headers = {"x-api-key": "a"}
    with server.http.stream("POST", CHAT, json=body, headers=headers) as response:
        text, told = "", False
        for line in response.iter_lines():
            text += f"{line}\n"
            if "hm" in line and not told:
                told = True
                assert end(server, json.loads(line[6:])["id"])[0] == 200
    assert said(text, "reasoning_content").rstrip().endswith("Enough.")
    assert said(text, "content") == "Answer"


def test_a_whole_answer(server: Server) -> None:
    headers = {"x-api-key": "a", "x-request-id": "whole"}
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(
            httpx2.post, server.url + CHAT, json={"messages": USER}, headers=headers, timeout=60
        )
        while end(server, "whole")[0] != 200:  # it has not come, or not begun to think
            assert not answer.done()
        message = answer.result().json()["choices"][0]["message"]
    assert message["content"].strip() == "Answer"


@pytest.mark.wing("messages", "ollama", "responses")
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            "/v1/messages",
            {
                "messages": [{"role": "user", "content": "loud"}],
                "max_tokens": 2**30,
                "thinking": {"type": "enabled", "budget_tokens": 2**29},
            },
        ),
        ("/v1/responses", {"input": "hi"}),
        ("/api/chat", {"messages": USER}),
    ],
)
def test_other_apis(server: Server, path: str, body: dict[str, Any]) -> None:
    pieces = re.findall(r'"(?:text|delta|content)": ?"([^"]*)"', streamed(server, path, body))
    assert "Answer" in "".join(pieces)


def test_only_choices_that_think(server: Server) -> None:
    text = streamed(server, CHAT, {"messages": USER, "n": 3})
    assert said(text, "content") == "Answer"


@pytest.mark.parametrize("budget", [10**9, None])
def test_beside_a_budget_and_a_constraint(server: Server, budget: int | None) -> None:
    loud = [{"role": "user", "content": "loud"}]
    body = {"messages": loud, "reasoning_budget": budget, "guided_regex": "Answer"}
    assert said(streamed(server, CHAT, body), "content") == "Answer"


def test_what_does_not_think(server: Server) -> None:
    headers = {"x-api-key": "a", "x-request-id": "plain"}
    for path, body in (
        (CHAT, {"messages": [{"role": "user", "content": "answer"}]}),
        ("/v1/completions", {"prompt": "answer", "max_tokens": 2**30}),
    ):
        sent = {**body, "stream": True}
        with server.http.stream("POST", path, json=sent, headers=headers) as response:
            lines = response.iter_lines()  # which closes the stream when it is gone
            next(lines)
            status, error = end(server, "plain")
            assert (status, error["error"]["code"]) == (409, "not_reasoning")
            assert end(server, "plain", "b")[0] == 404  # another key's
            assert server.http.post(
                "/v1/requests/plain/cancel", headers={"x-api-key": "admin"}
            ).is_success


def test_unknown_ids(server: Server) -> None:
    status, error = end(server, "nobody")
    assert (status, error["error"]["code"]) == (404, "request_not_found")


def endless() -> ScriptedChat:
    return ScriptedChat(lambda chat, index: itertools.repeat("a"), context_length=2**40)


@pytest.mark.parametrize(
    ("create", "config"),
    [
        (engine_backend(endless), {}),
        (lambda settings: InlineBackend(Thinker()), {"reasoning": "think"}),
    ],
    ids=["another server", "a backend that cannot"],
)
def test_where_nobody_can(
    create: Callable[[BackendSettings], Backend], config: dict[str, Any]
) -> None:
    with serve(scripted_config(**config), plugins_with(scripted=create)) as server:
        body = {"messages": USER, "stream": True}
        with server.http.stream("POST", CHAT, json=body) as response:
            lines = response.iter_lines()  # which closes the stream when it is gone
            next(lines)
            id = response.headers["x-request-id"]
            answer = server.http.post(f"/v1/requests/{id}/end_reasoning")
            assert (answer.status_code, answer.json()["error"]["code"]) == (409, "not_reasoning")
