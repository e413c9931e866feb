"""Requests that are being answered can be seen, and ended by their id."""

import itertools
import json
from asyncio import Task
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx2
import openai
import pytest

from enginebay import Backend, BackendSettings, EngineBackend
from enginebay.chat.answer.running import RunningRequest
from enginebay.models.index import FoundModel
from enginebay.models.served import ServedModel
from enginebay.testing import ScriptedEngine
from tests.api.test_queue import asking, error_of, keys_of, text_of
from tests.held import holding, until
from tests.support import Server, plugins_with, scripted_config, serve

TEXT = "/v1/completions"


def endless() -> ScriptedEngine:
    """For a process: it can be imported there."""
    return ScriptedEngine(_forever, context_length=10**9)


def _forever(prompt: str, index: int) -> Iterator[str]:
    return itertools.repeat("a")


BACKENDS: dict[str, Callable[[BackendSettings], Backend]] = {
    "thread": lambda settings: EngineBackend(endless),
    "process": lambda settings: EngineBackend(endless, isolation="process"),
}


def cancel(server: Server, id: str) -> tuple[int, Any]:
    response = server.http.post(f"/v1/requests/{id}/cancel")
    return response.status_code, response.json()


def nothing_runs(server: Server) -> bool:
    [model] = server.app.state.services.models.all()
    served = model.served()
    backend, gate = served.backend, served.gate
    asked = [request for request in server.app.state.services.serving.requests if request.asks]
    return not (asked or backend._streams or backend._in_use or gate.running or gate.waiting)


@contextmanager
def streaming(server: Server, **body: Any) -> Iterator[tuple[Iterator[str], str]]:
    """The events of a stream that has begun, and its id."""
    with server.http.stream("POST", TEXT, json={"stream": True, **body}) as response:
        events = (line[6:] for line in response.iter_lines() if line.startswith("data: "))
        yield events, json.loads(next(events))["id"]


@pytest.mark.parametrize("isolation", BACKENDS)
@pytest.mark.parametrize(
    "body", [{"prompt": "x"}, {"prompt": "x", "n": 3}, {"prompt": ["x", "y"], "n": 2}], ids=str
)
def test_a_stream_ends_as_aborted(isolation: str, body: dict[str, Any]) -> None:
    # WEB-10 WEB-11
    choices = body.get("n", 1) * len(listed(body["prompt"]))
    with serve(scripted_config(), plugins_with(scripted=BACKENDS[isolation])) as server:
        with streaming(server, **body, stream_options={"include_usage": True}) as (events, id):
            [listed_now] = server.http.get("/v1/requests").json()["data"]
            assert listed_now["id"] == id
            assert (listed_now["state"], listed_now["n"]) == ("running", choices)
            assert cancel(server, id)[0] == 200
            *chunks, usage, done = events
        assert done == "[DONE]"
        ends = [
            (choice["index"], choice["finish_reason"])
            for chunk in map(json.loads, chunks)
            for choice in chunk["choices"]
            if choice["finish_reason"]
        ]
        assert sorted(ends) == [(index, "abort") for index in range(choices)]
        counts = json.loads(usage)["usage"]
        assert counts["completion_tokens"] >= 1
        assert counts["prompt_tokens"] == len(listed(body["prompt"]))
        until(server, lambda: nothing_runs(server))
        assert cancel(server, id)[0] == 404
        assert server.http.get("/v1/requests").json()["data"] == []
        backend = server.app.state.services.models.all()[0].served().backend
        assert len(backend._aborted) == len(listed(body["prompt"]))


def listed(prompt: Any) -> list[str]:
    return prompt if isinstance(prompt, list) else [prompt]


@pytest.mark.parametrize("prompt", ["spoke", "silent?"])
@pytest.mark.parametrize("stream", [False, True])
def test_what_has_begun_is_delivered(prompt: str, stream: bool) -> None:
    # WEB-11
    with holding() as at, asking(at) as ask:
        answer = ask(prompt, n=2, stream=stream)
        at.begun(prompt)
        at.until(lambda: "?" in prompt or at.requests[0].counter.usage.completion_tokens == 2)
        [running] = at.requests
        assert cancel(at.server, running.id)[0] == 200
        text = answer.result().text
        assert answer.result().status_code == 200
        assert text.count('"finish_reason":"abort"') == 2
        assert text.endswith("[DONE]\n\n") == stream
        assert text.count('"text":"a"') == (0 if "?" in prompt else 2)
        at.nothing_is_left()


def test_a_chat_too() -> None:
    with holding() as at, asking(at) as ask:
        answer = ask("", path="chat/completions", messages=[{"role": "user", "content": "hi"}])
        at.begun("hi")
        [running] = at.requests
        assert running.answer_id
        assert running.answer_id.startswith("chatcmpl-")
        assert cancel(at.server, running.answer_id)[0] == 200
        [choice] = answer.result().json()["choices"]
        assert choice["finish_reason"] == "abort"
        at.nothing_is_left()


@pytest.mark.parametrize("stream", [False, True])
def test_who_waits_for_a_turn_gets_an_error(stream: bool) -> None:
    with holding(max_running=1) as at, asking(at) as ask:
        first = ask("first")
        at.begun("first")
        waiting = ask(["waiting", "more"], stream=stream)
        at.queued(1)
        card = at.server.http.get("/v1/requests").json()["data"][1]
        assert card == {
            "id": card["id"],
            "object": "request",
            "model": "scripted",
            "key": None,
            "route": "POST /v1/completions",
            "state": "queued",
            "position": 0,
            "age_s": card["age_s"],
            "prompt_tokens": len("waitingmore"),
            "completion_tokens": 0,
            "n": 2,
            "stream": stream,
        }
        assert cancel(at.server, card["id"]) == (
            200,
            {"id": card["id"], "object": "request", "cancelled": True},
        )
        assert error_of(waiting) == (499, "request_cancelled")
        at.let_go("first")
        assert text_of(first) == "ab"
        assert at.held.begun == ["first"]
        at.nothing_is_left()


def test_who_waits_while_others_of_the_answer_run_ends_with_them() -> None:
    with holding(max_running=1) as at, asking(at) as ask:
        answer = ask(["first", "second"])
        at.begun("first")
        assert cancel(at.server, at.requests[0].id)[0] == 200
        choices = answer.result().json()["choices"]
        assert [choice["finish_reason"] for choice in choices] == ["abort", "abort"]
        assert [choice["text"] for choice in choices] == ["a", ""]
        at.nothing_is_left()


def test_embeddings_end_with_an_error() -> None:
    with holding() as at, asking(at) as ask:
        answer = ask("e", path="embeddings")
        at.begun("e")
        assert cancel(at.server, at.requests[0].id)[0] == 200
        assert error_of(answer) == (499, "request_cancelled")
        at.nothing_is_left()


def test_who_waits_for_a_load_gets_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with holding() as at, asking(at) as ask:
        models = at.server.app.state.services.models
        waited: list[bool] = []

        @asynccontextmanager
        async def loading(found: FoundModel, user: str | None) -> AsyncIterator[ServedModel]:
            try:
                await at.held.until_told("load")
            finally:
                waited.append(True)
            yield found.entry.served()

        monkeypatch.setattr(models, "lease", loading)
        answer = ask("x")
        at.until(lambda: [request.state for request in at.requests] == ["loading"])
        assert cancel(at.server, at.requests[0].id)[0] == 200
        assert error_of(answer) == (499, "request_cancelled")
        assert waited
        at.nothing_is_left()


def test_the_id_that_the_client_gave() -> None:
    """It may have slashes, and belong to several requests; all of them are meant."""
    with holding() as at:
        id = "mine/1"

        def ask(prompt: str) -> Any:
            return at.server.http.build_request(
                "POST", TEXT, json={"prompt": prompt, "stream": True}, headers={"X-Request-Id": id}
            )

        first = at.server.http.send(ask("1"), stream=True)
        second = at.server.http.send(ask("2"), stream=True)
        assert cancel(at.server, id)[0] == 200
        for response in (first, second):
            assert "abort" in response.read().decode()
            response.close()
        at.nothing_is_left()
        status, body = cancel(at.server, id)
        assert (status, body["error"]["code"]) == (404, "request_not_found")


def test_openai_clients_do_not_try_again() -> None:
    with holding(max_running=1) as at, asking(at) as ask, ThreadPoolExecutor() as threads:
        first = ask("first")
        at.begun("first")
        client = at.server.openai.with_options(max_retries=3)
        again = threads.submit(client.completions.create, model="scripted", prompt="again")
        at.queued(1)
        cancel(at.server, at.requests[1].id)
        with pytest.raises(openai.APIStatusError) as caught:
            again.result()
        assert caught.value.status_code == 499
        at.let_go("first")
        assert text_of(first) == "ab"
        assert at.held.begun == ["first"]
        at.nothing_is_left()


@pytest.mark.parametrize("cancels_first", [False, True])
def test_a_client_that_leaves_as_it_is_cancelled(cancels_first: bool) -> None:
    """Its task is cancelled twice then, and nothing stays, nor is anything told to nobody."""
    with holding(max_running=1) as at:
        for _ in range(5):
            request = at.server.http.build_request(
                "POST", TEXT, json={"prompt": "x", "stream": True}
            )
            response = at.server.http.send(request, stream=True)
            [running] = at.requests
            [waiting] = running._interruptible
            at.until(lambda waiting=waiting: waiting.waits and not waiting._task.done())
            task = waiting._task

            async def end(running: RunningRequest, task: Task[Any]) -> None:
                ends = [running.cancel, running.cancel, task.cancel]
                for each in ends if cancels_first else reversed(ends):
                    each()

            at.server.run(end(running, task))
            with pytest.raises(httpx2.RemoteProtocolError):
                response.read()
            response.close()
            at.nothing_is_left()


def test_others_with_the_same_key_only() -> None:
    with holding(keys=keys_of("ann", "bob", "eve")) as at, asking(at) as ask:
        ann, bob = ask("ann", key="ann"), ask("bob", key="bob")
        at.until(lambda: len(at.held.running) == 2)
        seen = {
            key: [
                card["key"]
                for card in at.server.http.get("/v1/requests", headers={"x-api-key": key}).json()[
                    "data"
                ]
            ]
            for key in ("ann", "bob", "admin", "eve")
        }
        assert {key: sorted(names) for key, names in seen.items()} == {
            "ann": ["ann"],
            "bob": ["bob"],
            "admin": ["ann", "bob"],
            "eve": [],
        }
        of_ann = next(request for request in at.requests if request.key_name == "ann")
        path = f"/v1/requests/{of_ann.id}/cancel"
        assert at.server.http.post(path, headers={"x-api-key": "bob"}).status_code == 404
        assert at.server.http.post(path, headers={"x-api-key": "admin"}).status_code == 200
        assert ann.result().json()["choices"][0]["finish_reason"] == "abort"
        at.let_go("bob")
        assert text_of(bob) == "ab"
        at.nothing_is_left()
