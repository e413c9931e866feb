"""llama-server's `timings` and `prompt_progress` in chats and completions."""

import math
from collections.abc import Iterator
from typing import Any

import pytest

from enginebay import Delta, Prefill, ServingError
from enginebay.testing import ScriptedEngine
from tests.api.test_usage import events
from tests.conftest import ServeScripted
from tests.support import Server, engine_backend, plugins_with, scripted, scripted_config, serve

HELLO = ["Hel", "lo ", "there"]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ASKED: Any = [(CHAT, {"messages": [{"role": "user", "content": "hi"}]}), (TEXT, {"prompt": "hi"})]
COUNTS = {"cache_n", "prompt_n", "predicted_n"}
TIMES = {
    *("prompt_ms", "prompt_per_token_ms", "prompt_per_second"),
    *("predicted_ms", "predicted_per_token_ms", "predicted_per_second"),
}
WITH_USAGE = {"stream_options": {"include_usage": True}}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serve(scripted_config(), plugins_with(scripted=scripted(HELLO))) as running:
        yield running


@pytest.fixture(scope="module")
def with_timings() -> Iterator[Server]:
    config = scripted_config(server={"timings": True})
    with serve(config, plugins_with(scripted=scripted(HELLO))) as running:
        yield running


def check(timings: dict[str, Any], usage: dict[str, Any]) -> None:
    """They say the same as `usage.extra`."""
    assert timings.keys() == COUNTS | TIMES
    assert all(math.isfinite(value) and value >= 0 for value in timings.values())
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert timings["cache_n"] == cached
    assert timings["prompt_n"] == usage["prompt_tokens"] - cached
    assert timings["predicted_n"] == usage["completion_tokens"]
    extra = usage["extra"]
    assert timings["prompt_ms"] == pytest.approx(extra["time_to_first_token_s"] * 1000)
    assert timings["prompt_per_second"] == pytest.approx(extra["prefill_tokens_per_s"])
    assert timings["predicted_per_second"] == pytest.approx(extra["decode_tokens_per_s"])
    each = extra["time_per_output_token_s"] * 1000
    assert timings["predicted_per_token_ms"] == pytest.approx(each)
    assert timings["predicted_ms"] == pytest.approx(each * timings["predicted_n"])


# LLS-3


@pytest.mark.parametrize(("path", "body"), ASKED)
def test_asked_for(server: Server, path: str, body: dict[str, Any]) -> None:
    assert "timings" not in server.http.post(path, json=body).json()
    assert not any("timings" in chunk for chunk in events(server, path, body))
    response = server.http.post(path, json={**body, "timings_per_token": True})
    assert "x-unsupported-params" not in response.headers
    check(response.json()["timings"], response.json()["usage"])
    chunks = events(server, path, {**body, "timings_per_token": True, **WITH_USAGE})
    assert all(chunk["timings"].keys() == COUNTS | TIMES for chunk in chunks)
    counts = [chunk["timings"]["predicted_n"] for chunk in chunks]
    assert counts == sorted(counts)
    check(chunks[-1]["timings"], chunks[-1]["usage"])


@pytest.mark.parametrize(("path", "body"), ASKED)
def test_configured(with_timings: Server, path: str, body: dict[str, Any]) -> None:
    answer = with_timings.http.post(path, json=body).json()
    check(answer["timings"], answer["usage"])
    *chunks, last = events(with_timings, path, {**body, **WITH_USAGE})
    check(last["timings"], last["usage"])
    assert not any("timings" in chunk for chunk in chunks)
    *chunks, last = events(with_timings, path, {**body, "n": 2})
    assert last["choices"][0]["finish_reason"]
    assert last["timings"]["predicted_n"] == 2 * (len("Hello there") + 1)
    assert not any("timings" in chunk for chunk in chunks)


def test_usage_with_the_finish(serve_scripted: ServeScripted) -> None:
    server = serve_scripted(HELLO, server={"timings": True, "usage_with_finish": True})
    *chunks, last = events(server, CHAT, {**ASKED[0][1], **WITH_USAGE})
    assert last["choices"][0]["finish_reason"] == "stop"
    check(last["timings"], last["usage"])
    assert not any("timings" in chunk for chunk in chunks)


def test_an_answer_without_tokens(with_timings: Server) -> None:
    """Nothing is divided by zero."""
    body = {"prompt": "hi", "max_tokens": 0, "echo": True}
    answer = with_timings.http.post(TEXT, json=body).json()
    check(answer["timings"], answer["usage"])
    assert answer["timings"]["predicted_per_second"] == 0


class Reader(ScriptedEngine):
    """Reads two tokens of a prompt a step, and then says what the script says."""

    def __init__(self) -> None:
        super().__init__(HELLO)
        known = {name: getattr(self.info, name) for name in type(self.info).__dataclass_fields__}
        self.info = type(self.info)(**known | {"reports_prefill": True})
        self._read: dict[str, int] = {}

    def step(self) -> Iterator[tuple[str, Delta | ServingError]]:
        waiting = False
        for choice in self._choices:
            request = choice.request
            total, done = len(request.prompt_token_ids), self._read.get(request.request_id, 0)
            if request.reports_prefill and not choice.index and done < total:
                done = self._read[request.request_id] = min(total, done + 2)
                yield request.request_id, Delta(prefill=Prefill(total, 1, done))
                waiting = True
        if not waiting:
            yield from super().step()


@pytest.fixture(scope="module")
def reader() -> Iterator[Server]:
    with serve(scripted_config(), plugins_with(scripted=engine_backend(Reader))) as running:
        yield running


@pytest.mark.parametrize(("path", "body"), ASKED)
@pytest.mark.parametrize("n", [1, 2])
def test_progress(reader: Server, path: str, body: dict[str, Any], n: int) -> None:
    asked = {**body, "n": n, **WITH_USAGE}
    response = reader.http.post(path, json={**asked, "stream": True, "return_progress": True})
    assert "x-unsupported-params" not in response.headers
    chunks = events(reader, path, {**asked, "return_progress": True})
    told = [chunk.pop("prompt_progress") for chunk in chunks if "prompt_progress" in chunk]
    assert told  # before anything else, so nothing is in chunks that have it
    total = chunks[-1]["usage"]["prompt_tokens"]
    assert all(each["total"] == total and each["cache"] == 1 for each in told)
    assert [each["processed"] for each in told] == sorted({each["processed"] for each in told})
    times = [each["time_ms"] for each in told]
    assert times == sorted(times)
    assert min(times) >= 0
    rest = chunks[len(told) :]
    same = events(reader, path, asked)
    assert [said(chunk) for chunk in rest] == [said(chunk) for chunk in same]
    assert all(said(chunk) in (("assistant", ""), (None, "")) for chunk in chunks[: len(told)])
    assert chunks[-1]["usage"]["completion_tokens"] == same[-1]["usage"]["completion_tokens"]


def said(chunk: dict[str, Any]) -> Any:
    if not chunk["choices"]:
        return None
    choice = chunk["choices"][0]
    delta = choice.get("delta", choice)
    return delta.get("role"), delta.get("content", delta.get("text"))


@pytest.mark.parametrize(("path", "body"), ASKED)
def test_what_cannot_be_told_is_named(
    server: Server, reader: Server, path: str, body: dict[str, Any]
) -> None:
    """By an engine that does not say so, and in an answer that is not streamed."""
    asked = {**body, "return_progress": True}
    response = server.http.post(path, json={**asked, "stream": True})
    assert response.headers["x-unsupported-params"] == "return_progress"
    assert "prompt_progress" not in response.text
    response = reader.http.post(path, json=asked)
    assert response.headers["x-unsupported-params"] == "return_progress"


def test_a_real_model_says_how_far_it_is(demo: Server) -> None:
    """The batching kit does, in each step that computes a part of the prompt."""
    asked = {"prompt": "Some words about nothing. " * 6, "max_tokens": 2, **WITH_USAGE}
    chunks = events(demo, TEXT, {**asked, "return_progress": True})
    told = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
    total = chunks[-1]["usage"]["prompt_tokens"]
    assert told[-1]["processed"] == total
    assert all(each["cache"] <= each["processed"] <= each["total"] == total for each in told)
