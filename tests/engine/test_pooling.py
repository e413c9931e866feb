"""Calls that steps compute: shared passes, turns, cancelling, failures (engine/pooling)."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from functools import partial
from math import inf, isnan
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from enginebay import (
    BackendUnavailableError,
    ContextLengthExceededError,
    EngineBackend,
    EngineDeadError,
    EngineStats,
    InvalidRequestError,
    ModelInfo,
    PassLimits,
    PoolingEngine,
    ServingError,
)
from enginebay.contract.backend_settings import Isolation
from enginebay.engine.backoff import Backoff
from enginebay.engine.loop import EngineLoop
from enginebay.engine.messages import Answer, Call, Cancel, Close, Event, Report
from enginebay.engine.pooling.queue import PoolingQueue
from enginebay.testing import ScriptedEngine, check_backend
from tests.run import computed, request

CONTEXT = 64
NAN, RAISES, EXITS, HOLDS = 1000, 1001, 1002, 1003
LIMITS = PassLimits(max_texts=4, batch_tokens=64, pads=True)
both = pytest.mark.parametrize("isolation", ["thread", "process"])


class Letters:
    """A token a character; nothing is special."""

    special_token_ids: frozenset[int] = frozenset()

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return list(map(ord, text))

    encode_plain = encode

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(map(chr, token_ids))


class Pairs:
    def encode(self, query: str, document: str) -> list[int]:
        return list(map(ord, f"{query}|{document}"))


class Numbers:
    """The numbers of a text are its sum and its length; some tokens stand for accidents."""

    def __init__(self) -> None:
        self.passes: list[list[int]] = []
        self.closed = False

    def run(self, texts: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        self.passes.append([text[0] for text in texts])
        if any(EXITS in text for text in texts):
            os._exit(3)
        if any(RAISES in text for text in texts):
            raise RuntimeError("out of memory")
        sums = [np.nan if NAN in text else float(sum(text)) for text in texts]
        return np.array([sums, list(map(len, texts))], dtype=np.float32).T

    def close(self) -> None:
        self.closed = True


def engine(limits: PassLimits = LIMITS, **info: Any) -> PoolingEngine:
    facts: dict[str, Any] = {
        "embedding_size": 2,
        "reranks": True,
        "labels": ("sum", "length"),
        **info,
    }
    made = ModelInfo(context_length=CONTEXT, vocab_size=2000, generates=False, **facts)
    return PoolingEngine(Numbers(), Letters(), made, limits, pairs=Pairs(), relevance=_score)


def _score(row: NDArray[np.float32]) -> float:
    return float(row[0])


def passes(made: PoolingEngine) -> list[list[int]]:
    pooler: Any = made._pooler
    return pooler.passes


def text(first: int, length: int) -> list[int]:
    return [first] * length


# Which texts share a pass.


def test_texts_of_several_calls_share_a_pass() -> None:
    made = engine()
    one, two = made.embed([text(1, 5), text(2, 5)]), made.embed([text(3, 5)])
    third = made.rerank([text(4, 5)])
    assert computed(made, one) == [[5, 5], [10, 5]]
    assert passes(made) == [[1, 2, 3, 4]]
    assert (computed(made, two), computed(made, third)) == ([[15, 5]], [20])
    assert len(passes(made)) == 1


def test_a_long_list_and_a_single_text_take_turns() -> None:
    made = engine()
    long = made.embed([text(1, 60) for _ in range(8)])
    assert list(made.step()) == []
    short = made.embed([text(2, 3)])
    made.step()
    assert isinstance(short, Future)
    assert short.done()
    assert passes(made) == [[1], [2]]
    made.step()
    assert made.stats() == EngineStats(running=1, waiting=5)
    assert len(computed(made, long)) == 8
    assert made.stats() == EngineStats(running=0, waiting=0)


def test_calls_that_keep_coming_do_not_hold_up_a_long_list() -> None:
    made = engine()
    long = made.embed([text(1, 60) for _ in range(5)])
    for _ in range(10):
        made.embed([text(2, 3)])
        made.step()
    assert isinstance(long, Future)
    assert long.done()


def test_a_text_longer_than_a_pass_runs_alone() -> None:
    made = engine(PassLimits(max_texts=4, batch_tokens=16, pads=True))
    assert len(computed(made, made.embed([text(1, 60), text(2, 8), text(3, 8), text(4, 8)]))) == 4
    assert passes(made) == [[1], [2, 3], [4]]


def test_texts_that_are_not_padded_may_differ_in_length() -> None:
    made = engine(PassLimits(max_texts=4, batch_tokens=64, pads=False))
    assert computed(made, made.embed([text(1, 3), text(2, 60), text(3, 1)]))[1] == [120, 60]
    assert passes(made) == [[2, 1, 3]]


@given(
    lengths=st.lists(st.lists(st.integers(1, 300), min_size=1, max_size=9), min_size=1, max_size=6),
    pads=st.booleans(),
    arrivals=st.integers(0, 5),
)
def test_every_text_is_run_once_in_passes_within_their_limits(
    lengths: list[list[int]], pads: bool, arrivals: int
) -> None:
    limits = PassLimits(max_texts=4, batch_tokens=256, pads=pads)
    queue = PoolingQueue(limits)
    calls = [[text(index, length) for length in some] for index, some in enumerate(lengths)]
    late = calls[arrivals:]
    futures = [queue.add(call, np.ndarray.tolist) for call in calls[:arrivals]]
    while len(queue) or late:
        if late:
            futures.append(queue.add(late.pop(0), np.ndarray.tolist))
        places = queue.take()
        run = [call.text(index) for call, index in places]
        tokens = sum(map(len, run))
        padded = len(run) * max(map(len, run))
        assert 1 <= len(run) <= 4
        assert len(run) == 1 or (padded if pads else tokens) <= 256
        assert not pads or padded - tokens <= max(padded / 8, 64)
        for call, index in places:
            call.put(index, np.array([len(call.text(index))], np.float32))
    for future, call in zip(futures, calls, strict=True):
        assert future.result() == [[len(each)] for each in call]
    assert queue.take() == []


# What goes wrong with one text.


def test_numbers_that_are_not_finite_are_told_as_they_are() -> None:
    """The server names the text, and what to do."""
    made = engine()
    good, bad = made.embed([text(1, 5)]), made.embed([text(2, 5), [3, NAN, 3, 3, 3]])
    assert computed(made, good) == [[5, 5]]
    fine, broken = computed(made, bad)
    assert fine == [10, 5]
    assert any(map(isnan, broken))
    assert made.stats() == EngineStats(running=0, waiting=0)


def test_a_pass_that_raises_is_run_text_by_text() -> None:
    made = engine()
    good, bad = made.embed([text(1, 5), text(2, 5)]), made.embed([[3, RAISES, 3, 3, 3]])
    assert computed(made, good) == [[5, 5], [10, 5]]
    with pytest.raises(ServingError, match=r"text number 1 of 1 \(RuntimeError: out of memory"):
        computed(made, bad)
    assert sorted(passes(made)[0]) == [1, 2, 3]
    assert computed(made, made.embed([[5]])) == [[5, 1]]


def test_a_text_that_fails_alone_is_logged_and_limits_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = engine()
    call = made.embed([text(1, 5), [3, RAISES], text(2, 5)])
    with pytest.raises(ServingError, match="text number 2 of 3"):
        computed(made, call)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "a pass of 3 texts failed, running each alone: out of memory"),
        ("ERROR", "a text of 2 tokens failed"),
    ]
    made._pooler.passes.clear()
    assert len(computed(made, made.embed([text(index, 16) for index in range(1, 5)]))) == 4
    assert passes(made) == [[1, 2, 3, 4]]


@pytest.mark.parametrize("pads", [True, False])
def test_passes_that_are_too_large_become_smaller(
    pads: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """As if there were memory for 40 tokens."""
    made = engine(PassLimits(max_texts=4, batch_tokens=64, pads=pads))
    pooler: Any = made._pooler
    run = pooler.run

    def small(texts: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        if sum(map(len, texts)) > 40:
            pooler.passes.append(["failed"])
            raise RuntimeError("out of memory")
        return run(texts)

    pooler.run = small
    texts = [text(index, 16) for index in range(1, 9)]
    assert computed(made, made.embed(texts)) == [[16 * index, 16] for index in range(1, 9)]
    assert passes(made).count(["failed"]) == 1
    assert passes(made)[-2:] == [[5, 6], [7, 8]]
    assert [record.getMessage() for record in caplog.records] == [
        "a pass of 4 texts failed, running each alone: out of memory",
        "limiting passes of several texts to 32 tokens from now on",
    ]


def test_an_engine_that_can_run_nothing_is_dead() -> None:
    made = engine()
    pooler: Any = made._pooler
    pooler.run = lambda texts: 1 / 0
    made.embed([[1]])
    with pytest.raises(RuntimeError, match="cannot run a short text: ZeroDivisionError"):
        made.step()


def test_what_is_said_of_a_model_that_overflows() -> None:
    made = engine()
    assert made.problem() is None
    pooler: Any = made._pooler
    pooler.run = lambda texts: np.array([[inf]])
    problem = made.problem()
    assert problem is not None
    assert "not finite" in problem
    assert "float32" in problem
    assert "NaN" in problem


def test_calls_that_cannot_be() -> None:
    made = engine()
    for wrong in ([], [-1], [2000]):
        with pytest.raises(InvalidRequestError) as caught:
            made.embed([[5], wrong])
        assert caught.value.param == "input"
    with pytest.raises(ContextLengthExceededError, match="65 tokens"):
        made.classify([[5] * 65])
    with pytest.raises(InvalidRequestError, match="does not generate text"):
        made.add_request(request([5]))
    assert computed(made, made.embed([])) == []
    only = engine(reranks=False, labels=())
    with pytest.raises(InvalidRequestError, match="does not support reranking"):
        only.rerank([[1]])
    with pytest.raises(InvalidRequestError, match="does not classify"):
        only.classify([[1]])
    with pytest.raises(InvalidRequestError, match="does not support embeddings"):
        engine(embedding_size=None).embed([[1]])


# In the loop of an engine.


def drive(made: PoolingEngine, script: Any) -> list[Event]:
    """Run an engine's loop; `script(loop, event)` is told what happens and sends what it likes."""
    events: list[Event] = []

    def emit(event: Event) -> None:
        events.append(event)
        script(loop, event)

    loop = EngineLoop(lambda: made, emit, clock=lambda: 0.0)
    script(loop, None)
    loop.run()
    return events


def answers(events: Sequence[Event]) -> dict[int, Any]:
    return {event.number: event.result for event in events if isinstance(event, Answer)}


def embedding(number: int, *texts: Sequence[int]) -> Call:
    return Call(number, "embed", (texts,), {})


def test_the_loop_steps_until_calls_are_done() -> None:
    made = engine()

    def script(loop: EngineLoop, event: Event | None) -> None:
        if event is None:
            loop.send(embedding(1, *[text(1, 60)] * 3))
            loop.send(embedding(2, [7, 7], [NAN]))
            loop.send(embedding(3, []))
        if isinstance(event, Report) and not event.stats.waiting:
            loop.send(Close())

    events = drive(made, script)
    found = answers(events)
    assert found[1] == [[60, 60]] * 3
    assert [isnan(first) for first, _ in found[2]] == [False, True]
    assert isinstance(found[3], InvalidRequestError)
    last = [event.stats for event in events if isinstance(event, Report)][-1]
    assert (last.running, last.waiting) == (0, 0)
    assert last.steps == len(passes(made)) == 4


def test_a_cancelled_call_is_not_computed_any_further() -> None:
    made = engine()

    def script(loop: EngineLoop, event: Event | None) -> None:
        if event is None:
            loop.send(embedding(1, *[text(1, 60)] * 50))
            loop.send(embedding(2, text(2, 3)))
        if isinstance(event, Answer) and event.number == 2:
            loop.send(Cancel(1))
            loop.send(Cancel(99))
            loop.send(embedding(3, [5]))
        if isinstance(event, Answer) and event.number == 3:
            loop.send(Close())

    events = drive(made, script)
    assert answers(events) == {2: [[6, 3]], 3: [[5, 1]]}
    assert passes(made) == [[1], [2], [5]]
    assert made.stats() == EngineStats(running=0, waiting=0)


class Held(PoolingEngine):
    """Steps only once a call with one text more has come, so that calls meet."""

    def step(self) -> tuple[()]:
        if any(HOLDS in call.text(0) for call in self._queue._calls) and len(self._queue) < 2:
            return ()
        return super().step()


def held() -> PoolingEngine:
    info = ModelInfo(
        context_length=CONTEXT, vocab_size=2000, generates=False, embedding_size=2, reranks=True
    )
    return Held(Numbers(), Letters(), info, LIMITS, pairs=Pairs(), relevance=_score)


@asynccontextmanager
async def running(isolation: Isolation, **more: Any) -> AsyncIterator[EngineBackend]:
    backend = EngineBackend(partial(held), isolation=isolation, **more)
    try:
        await backend.start()
        yield backend
    finally:
        await backend.close()


@both
async def test_calls_of_several_clients(isolation: Isolation) -> None:
    async with running(isolation) as backend:
        results = await asyncio.gather(
            backend.embed([[1, 2], [3]]), backend.rerank([[4]]), backend.embed([[5]])
        )
        assert results == [[[3, 2], [3, 1]], [4], [[5, 1]]]
        await backend.ping()


@both
async def test_a_client_that_leaves_cancels_its_call(isolation: Isolation) -> None:
    async with running(isolation) as backend:
        left = asyncio.ensure_future(backend.embed([[HOLDS]]))
        await backend.ping()
        assert not left.done()
        left.cancel()
        assert await backend.embed([[7]]) == [[7, 1]]
        await backend.ping()
        assert backend.stats is not None
        assert (backend.stats.running, backend.stats.waiting) == (0, 0)


async def test_a_crash_fails_calls_that_are_being_computed() -> None:
    never = Backoff(first=3600, longest=3600)
    async with running("process", backoff=never) as backend:
        results = await asyncio.gather(
            backend.embed([[HOLDS]]), backend.embed([[EXITS]]), return_exceptions=True
        )
        assert [type(result) for result in results] == [EngineDeadError] * 2
        with pytest.raises(BackendUnavailableError, match="restarting"):
            await backend.embed([[1]])


async def test_a_step_that_raises_fails_calls_that_are_being_computed() -> None:
    class Broken(ScriptedEngine):
        def __init__(self) -> None:
            super().__init__(["a"])
            self.future: Future[list[list[float]]] = Future()

        def embed(self, prompts: Sequence[Sequence[int]]) -> Future[list[list[float]]]:
            return self.future

        def step(self) -> Any:
            raise KeyError("oops")

    backend = EngineBackend(Broken, backoff=Backoff(first=3600, longest=3600))
    await backend.start()
    with pytest.raises(EngineDeadError, match="oops"):
        await backend.embed([[1]])
    await backend.close()


async def test_unloading_fails_calls_that_are_being_computed() -> None:
    async with running("thread") as backend:
        waiting = asyncio.ensure_future(backend.embed([[HOLDS]]))
        await backend.ping()
        await backend.close()
        with pytest.raises(EngineDeadError, match="unloaded"):
            await waiting


async def test_keeps_the_promises_of_a_backend() -> None:
    await check_backend(engine)
