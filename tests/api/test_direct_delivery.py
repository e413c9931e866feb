"""Tokens are sent by whoever brings them, and nobody can tell by anything but the CPU time."""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from enginebay import Backend, Delta, GenerationRequest, ServingError, hookimpl
from enginebay.chat.answer.collector import Collector
from enginebay.chat.answer.compose_openai import OpenAIComposer
from enginebay.chat.answer.delta_reader import DirectDelivery
from enginebay.config.schema import Config
from enginebay.contract.errors import KeyRevokedError, RequestCancelledError
from enginebay.testing import ScriptedEngine
from enginebay.testing.scripted import Script
from tests.held import until
from tests.stepping import Stepping, connected, turns, without_times
from tests.support import InlineBackend, Server, engine_backend, plugins_with, serve
from tests.usage.test_usage_of_routes import keys_of, usage

Json = dict[str, Any]
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HI: Json = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
"""Its script calls it where it is offered."""


def say(prompt: str, index: int) -> list[str]:
    """Thought, content and, where tools are offered, a call, in a few ways to cut them."""
    said = ["<think>", "Let ", "me", " see", ". ", "</th", "ink>", "\n", "So", " it", " is", " <b"]
    said += [str(index), "> ", "é", "\n\n", "a line", " and", " more"]
    if "tools" in prompt:
        said += ['<tool_call>\n{"name": "f", "arguments', '": {"a": ', "1, ", '"b": "', "x", " y"]
        said += ['"}}', "\n</tool_call>"]
    return said


@dataclass
class Asked:
    """A server whose engine steps at the pace of the event loop, and what was sent at once."""

    server: Server
    taken: list[bool]
    backend: Any

    @property
    def sent(self) -> int:
        """How many deltas were sent without their reader."""
        return sum(self.taken)

    def chunks(self, path: str, body: Json, key: str = "anna") -> list[bytes]:
        """All chunks of an answer, without what no two answers have in common."""
        with connected(self.server.url) as client:
            client.ask(path, body, Connection="close", X_Api_Key=key, X_Request_Id="mine")
            head = client.head()
            assert " 200 " in head, head
            assert "chunked" in head
            found = [without_times(chunk) for chunk in client.chunks()]
        self.server.settle()
        return found

    def nothing_runs(self) -> None:
        """Wait until every trace of requests is gone, in the engine's backend as well."""
        requests = self.server.app.state.services.serving.requests
        until(
            self.server,
            lambda: (
                not (
                    self.backend._streams
                    or self.backend._in_use
                    or [request for request in requests if request.asks]
                )
            ),
        )

    def usage(self) -> Json:
        """What the keys have used."""
        return usage(self.server, "root", key="anna")["data"][0]

    def metrics(self) -> list[str]:
        """All counts, but not how long things take."""
        text = self.server.http.get("/metrics", headers={"x-api-key": "root"}).text
        times = re.compile(
            "#|.*(_bucket|_sum|seconds|_bytes|progress|:engine_|:kv_)|python|process"
        )
        return [line for line in text.splitlines() if not times.match(line)]


@contextmanager
def asked(
    monkeypatch: pytest.MonkeyPatch,
    script: Script = say,
    *,
    own_protocol: bool = True,
    hook: Any = None,
    backend: Callable[[ScriptedEngine], Backend] | None = None,
    server: Json | None = None,
    engine: Json | None = None,
    **model: Any,
) -> Iterator[Asked]:
    """A model that thinks and calls. Without `own_protocol` all deltas go the usual way."""
    taken: list[bool] = []
    take = DirectDelivery.__call__

    def noted(self: DirectDelivery, delta: Delta) -> bool:
        taken.append(False)
        taken[-1] = take(self, delta)
        return taken[-1]

    if own_protocol:  # else there is none
        monkeypatch.setattr(DirectDelivery, "__call__", noted)
    stepping = Stepping(script, **(engine or {}))
    create = engine_backend(lambda: stepping)
    plugins = plugins_with(scripted=(lambda _: backend(stepping)) if backend else create)
    if hook:
        plugins._manager.register(hook, name="hook")
    entry = {"name": "scripted", "backend": "scripted", "path": ".", "reasoning": "think"}
    settings = {"auth": "required", "key_metrics": True, "log_prompts": True, **(server or {})}
    config = Config.model_validate(
        {"models": [{**entry, "tools": "hermes", **model}], "server": settings}
    )
    keys = keys_of(anna={})
    with serve(config, plugins, keys=keys, own_protocol=own_protocol) as running:
        if backend is None:
            stepping.loop = running.loop
        [model] = running.app.state.services.models.all()
        yield Asked(running, taken, model.served().backend)
        stepping.loop = None
    monkeypatch.setattr(DirectDelivery, "__call__", take)


USAGE = {"stream_options": {"include_usage": True}}
MESSAGES = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}
STREAMS: dict[str, tuple[str, Json]] = {
    "chat": (CHAT, {**HI, **USAGE}),
    "calls": (CHAT, {**HI, "tools": [TOOL]}),
    "logprobs": (CHAT, {**HI, "logprobs": True, "top_logprobs": 1}),
    "usage in all": (CHAT, {**HI, "stream_options": {"continuous_usage_stats": True}}),
    "timings": (CHAT, {**HI, "timings_per_token": True}),
    "token ids": (CHAT, {**HI, "return_token_ids": True}),
    "stopped": (CHAT, {**HI, "stop": "line"}),
    "cut": (CHAT, {**HI, "max_tokens": 20}),
    "text": (TEXT, {"prompt": "hi", "stream": True, **USAGE}),
    "text, logprobs": (TEXT, {"prompt": "hi", "stream": True, "logprobs": 1}),
    "text, echo": (TEXT, {"prompt": "hi", "stream": True, "echo": True}),
    "constrained": (TEXT, {"prompt": "hi", "stream": True, "regex": "[a-z <>.A-Z/\n]+0?.*"}),
    "responses": ("/v1/responses", {"input": "hi", "stream": True, "store": False}),
    "messages": ("/v1/messages", {**MESSAGES, "max_tokens": 100, "stream": True}),
    "ollama": ("/api/chat", MESSAGES),
    "ollama, text": ("/api/generate", {"model": "scripted", "prompt": "hi"}),
    "kobold": ("/api/extra/generate/stream", {"prompt": "hi"}),
}
"""Whose deltas are sent at once but for the first and the last ones."""

USUAL: dict[str, tuple[str, Json]] = {
    "two choices": (CHAT, {**HI, "n": 2}),
    "prompts": (TEXT, {"prompt": ["one", "two"], "stream": True}),
    "limited": (TEXT, {"prompt": "hi", "stream": True, "t_max_predict_ms": 10**9}),
    "prompt only": (TEXT, {"prompt": "hi", "stream": True, "echo": True, "max_tokens": 0}),
}


def outcome(at: Asked, path: str, body: Json, caplog: pytest.LogCaptureFixture) -> Json:
    """All that a stream leaves behind."""
    caplog.clear()
    with caplog.at_level(logging.INFO, "enginebay.chat"):
        chunks = at.chunks(path, body)
    logged = [
        line.getMessage() for line in caplog.records if line.name.startswith("enginebay.chat")
    ]
    ids = re.compile(r"\b(resp_)?[0-9a-f]{8,32}\b")
    return {
        "chunks": chunks,
        "log": [ids.sub("X", line) for line in logged],
        "usage": at.usage(),
        "metrics": at.metrics(),
    }


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Asked, Asked]]:
    """Two servers, of which the first sends at once."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        first = stack.enter_context(asked(patch))
        second = stack.enter_context(asked(patch, own_protocol=False))
        yield first, second


@pytest.mark.wing("kobold", "messages", "ollama", "responses")
@pytest.mark.parametrize("name", [*STREAMS, *USUAL])
def test_both_ways_are_one(
    both: tuple[Asked, Asked], caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """The same events in the same chunks, and the same counts, log and usage afterwards."""
    path, body = (STREAMS | USUAL)[name]
    at_once, usual = both
    before = at_once.sent, usual.sent
    one, other = (outcome(at, path, body, caplog) for at in both)
    if name == "prompts":  # whose turns come as they come
        one["chunks"].sort()
        other["chunks"].sort()
    assert one["chunks"] == other["chunks"]
    assert one["log"] == other["log"]
    assert one["usage"] == other["usage"]
    assert one["metrics"] == other["metrics"]
    sent = at_once.sent - before[0]
    if name in USUAL:
        assert not sent
    else:
        assert sent >= len(one["chunks"]) / 3
        assert sent > 3
    assert usual.sent == before[1]


def test_a_whole_answer_is_read(both: tuple[Asked, Asked]) -> None:
    """There is nothing to send before its end."""
    for each in both:
        before = len(each.taken)
        body = {"messages": HI["messages"]}
        answer = each.server.http.post(CHAT, json=body, headers={"x-api-key": "anna"})
        assert answer.json()["choices"][0]["message"]["content"].startswith("So it is <b0> é")
        assert len(each.taken) == before


def test_what_is_captured_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with asked(monkeypatch, server={"capture": str(tmp_path)}) as at:
        assert len(at.chunks(CHAT, HI)) > 10
        assert not at.taken


class Passes:
    """A plugin that looks at requests, and not at their deltas."""

    def __init__(self) -> None:
        self.seen = 0

    @hookimpl(wrapper=True)
    def generate(self, backend: Backend, request: GenerationRequest) -> Any:
        self.seen += 1
        return (yield)


class Wraps:
    """A plugin that has a generator of its own around the engine's."""

    def __init__(self) -> None:
        self.seen = 0

    @hookimpl(wrapper=True)
    def generate(self, backend: Backend, request: GenerationRequest) -> Any:
        return self._counted((yield))

    async def _counted(self, deltas: AsyncGenerator[Delta, None]) -> AsyncGenerator[Delta, None]:
        async for delta in deltas:
            self.seen += 1
            yield delta


@pytest.mark.parametrize("plugin", [Passes, Wraps])
def test_a_plugin_sees_every_delta(
    both: tuple[Asked, Asked],
    monkeypatch: pytest.MonkeyPatch,
    plugin: type[Passes | Wraps],
) -> None:
    hook = plugin()
    with asked(monkeypatch, hook=hook) as at:
        chunks = at.chunks(CHAT, HI)
        assert chunks == both[1].chunks(CHAT, HI)
        assert bool(at.sent) is (plugin is Passes)
    assert hook.seen == (1 if plugin is Passes else 20)


def test_other_backends_go_the_usual_way(
    both: tuple[Asked, Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    with asked(monkeypatch, backend=InlineBackend) as at:
        assert at.chunks(CHAT, HI) == both[1].chunks(CHAT, HI)
        assert not at.taken


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_old_clients_go_the_usual_way(both: tuple[Asked, Asked], version: str) -> None:
    at_once, usual = both
    before = at_once.sent
    with connected(at_once.server.url) as client:
        client.ask(CHAT, HI, version, Connection="close", X_Api_Key="anna")
        client.head()
        sent = client.chunks() if version == "1.1" else client.lines()
        assert b"".join(map(without_times, sent)) == b"".join(usual.chunks(CHAT, HI))
    at_once.server.settle()
    assert (at_once.sent > before) is (version == "1.1")


def test_one_connection_answers_again(both: tuple[Asked, Asked]) -> None:
    """What comes next on it is an answer of its own, whatever was written past uvicorn."""
    at_once, _ = both
    with connected(at_once.server.url) as client:
        answers = []
        for _ in range(3):
            client.ask(CHAT, HI, X_Api_Key="anna")
            client.head()
            answers.append([*map(without_times, client.chunks())])
            assert client._file.readline() == b"\r\n"  # behind the last chunk
    assert answers[0] == answers[1] == answers[2]


def forever(prompt: str, index: int) -> Iterator[str]:
    while True:
        yield "a"


ENDS: dict[str, tuple[RequestCancelledError, bytes]] = {
    "cancelled": (RequestCancelledError("the request was cancelled"), b'"finish_reason":"abort"'),
    "revoked": (KeyRevokedError("the API key is not valid any more"), b"not valid any more"),
}


@pytest.mark.parametrize("name", ENDS)
def test_it_ends_between_two_tokens(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """What was sent until then is all there is; what is on its way is dropped. WEB-11"""
    error, end = ENDS[name]
    with asked(monkeypatch, forever) as at, connected(at.server.url) as client:
        client.ask(TEXT, {"prompt": "hi", "stream": True, **USAGE}, X_Api_Key="anna")
        client.head()
        until(at.server, lambda: at.sent > 10)

        async def cancel() -> tuple[int, int]:
            [request] = [r for r in at.server.app.state.services.serving.requests if r.asks]
            sent = at.sent
            request.cancel(error)
            await turns()
            return sent, at.sent

        before, after = at.server.run(cancel())
        assert before == after
        chunks = [*client.chunks()]
        assert sum(b'"text":"a"' in chunk for chunk in chunks) in (before + 1, before + 2)
        assert sum(end in chunk for chunk in chunks) == 1
        assert chunks[-1] == b"data: [DONE]\n\n"
        if name == "cancelled":
            [counts] = [chunk for chunk in chunks if b'"usage":{' in chunk]
            said = sum(b'"text":"a"' in chunk for chunk in chunks)
            assert b'"completion_tokens":%d' % said in counts
        at.nothing_runs()


def test_a_client_that_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    with asked(monkeypatch, forever) as at:
        with connected(at.server.url) as client:
            client.ask(TEXT, {"prompt": "hi", "stream": True}, X_Api_Key="anna")
            client.head()
            until(at.server, lambda: at.sent > 10)
            client.close()
        at.nothing_runs()
        assert 'outcome="aborted"} 1' in "\n".join(at.metrics())


def test_a_client_that_stops_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tokens wait, joined; when it reads on, it gets all of them in order."""
    numbers = [f"{number:x}".zfill(20_000) for number in range(400)]
    with asked(monkeypatch, lambda *_: numbers, engine={"context_length": 10**9}) as at:
        with connected(at.server.url, buffer=5000) as client:
            body = {"prompt": "hi", "stream": True, **USAGE}
            client.ask(TEXT, body, Connection="close", X_Api_Key="anna")
            client.head()
            until(at.server, lambda: at.sent > 1 and not at.taken[-1])
            declined = len(at.taken)
            streams = at.backend._streams
            until(at.server, lambda: any(len(each._items) > 2 for each in streams.values()))
            assert len(at.taken) == declined  # its reader does not wait for tokens, but for it
            chunks = [*client.chunks()]
        texts = [piece for chunk in chunks for piece in re.findall(rb'"text":"(\w+)"', chunk)]
        assert b"".join(texts) == "".join(numbers).encode()
        assert len(texts) < len(numbers)
        tokens = 20_000 * len(numbers) + 1
        assert b'"completion_tokens":%d' % tokens in chunks[-2]
        at.server.settle()
        assert at.usage()["completion_tokens"] == tokens


def fails(prompt: str, index: int) -> Iterator[str]:
    yield from "abcdefgh"
    raise RuntimeError("out of words")


def test_an_engine_that_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind what it has said comes the error, as it does the usual way."""
    found = []
    for own_protocol in (True, False):
        with asked(monkeypatch, fails, own_protocol=own_protocol) as at:
            found.append(at.chunks(TEXT, {"prompt": "hi", "stream": True}))
            assert (at.sent == 7) is own_protocol
            at.nothing_runs()
    assert found[0] == found[1]
    assert b"out of words" in found[0][-2]
    assert len(found[0]) == 10


@pytest.mark.parametrize(
    ("part", "name"), [(OpenAIComposer, "frames"), (Collector, "feed")], ids=["composer", "parser"]
)
@pytest.mark.parametrize(
    "error", [ServingError("no such form"), ValueError("secret"), StopIteration("secret")], ids=str
)
def test_what_fails_on_the_way(
    monkeypatch: pytest.MonkeyPatch, part: Any, name: str, error: Exception
) -> None:
    """The error is the next event, and the engine is told to stop."""
    works = getattr(part, name)
    found = []
    for own_protocol in (True, False):
        made: list[int] = []

        def failing(self: Any, given: Any, made: list[int] = made) -> Any:
            made.append(1)
            if len(made) > 6:
                raise error
            return works(self, given)

        monkeypatch.setattr(part, name, failing)
        with asked(monkeypatch, forever, own_protocol=own_protocol) as at:
            chunks = at.chunks(TEXT, {"prompt": "hi", "stream": True})
            found.append((chunks, at.usage(), at.metrics()))
            assert (at.sent == 5) is own_protocol
            assert len(at.taken) == (6 if own_protocol else 0)
            at.nothing_runs()
            assert len(at.backend._aborted) == 1
    for one, other in zip(*found, strict=True):
        assert one == other
    chunks = found[0][0]
    assert len(chunks) == 8
    assert (b"no such form" if isinstance(error, ServingError) else b"internal error") in chunks[6]
    assert b"secret" not in b"".join(chunks)
    assert chunks[-1] == b"data: [DONE]\n\n"


def test_pings_come_while_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as it takes, between tokens that are sent at once."""
    goes_on = asyncio.Event()

    class Pausing(Stepping):
        def step(self) -> Any:
            deltas = super().step()
            if at and sum(at[0].taken) == 5 and self.loop:
                asyncio.run_coroutine_threadsafe(goes_on.wait(), self.loop).result(60)
            return deltas

    at: list[Asked] = []
    monkeypatch.setattr("tests.api.test_direct_delivery.Stepping", Pausing)
    with asked(monkeypatch, server={"ping_interval": 0.01}) as running:
        at.append(running)
        with connected(running.server.url) as client:
            client.ask(CHAT, HI, Connection="close", X_Api_Key="anna")
            client.head()
            chunks = []
            for chunk in client.chunks():
                chunks.append(chunk)
                if chunks[-3:] == [b": ping\n"] * 3:
                    running.server.loop.call_soon_threadsafe(goes_on.set)
        assert sum(chunk == b": ping\n" for chunk in chunks) >= 3
        assert running.sent > 10
        data = [without_times(chunk) for chunk in chunks if chunk != b": ping\n"]
        again = running.chunks(CHAT, HI)
        assert data == [chunk for chunk in again if chunk != b": ping\n"]


def test_progress_of_running_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    with asked(monkeypatch, forever) as at, connected(at.server.url) as client:
        client.ask(TEXT, {"prompt": "hi", "stream": True}, X_Api_Key="anna")
        client.head()
        until(at.server, lambda: at.sent > 20)
        headers = {"x-api-key": "anna"}
        [card] = at.server.http.get("/v1/requests", headers=headers).json()["data"]
        assert card["completion_tokens"] > 20
        assert at.usage()["completion_tokens"] > 20
