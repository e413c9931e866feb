"""Servers that go, come back, are not ready, or have another model."""

import asyncio
import itertools
import logging
from collections.abc import Iterator
from contextlib import aclosing
from threading import Event
from typing import Any

import pytest
from chat_events import PATH, event
from enginebay_remote.http import Http
from enginebay_remote.pool import Pool
from enginebay_remote.servers import Wanted
from enginebay_remote.upstream import Upstream
from fake import DONE, Answer, Fake, events, fake
from several import CARD, Clock, answer, answering, asked_of, backend, chat, fakes, said, started

from enginebay import BackendUnavailableError

PIECE = events(event({"content": "x"})).removesuffix(DONE)


def port(server: Fake) -> int:
    """To have a server there again."""
    return int(server.url.rpartition(":")[2])


async def test_a_server_that_goes_and_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing goes there meanwhile; it is looked at in growing intervals, and used again."""
    caplog.set_level(logging.INFO)
    clock = Clock()
    with fake(answering("b")) as other:
        with fake(answering("a")) as first:
            gone = backend([first, other], clock)
            await gone.start()
        try:
            assert await clock.waits() == [5, 5]
            for number in range(24):
                assert await answer(gone, chat(f"{number} " * 100)) == "b"
            if 0.5 not in await clock.waits():  # by chance no request has been there yet
                await clock.wake()
            waits = []
            for _ in range(7):
                [wait] = [each for each in await clock.waits() if each != 5]
                waits.append(wait)
                await clock.wake(wait)
            assert waits == [0.5, 1, 2, 4, 8, 10, 10]
            assert gone.unavailable is None
            with fake(answering("a"), port(first)):
                await clock.wake(10)
                assert await clock.waits() == [5, 5]
                others = [chat(f"{number} " * 100) for number in range(100, 124)]
                assert {await answer(gone, each) for each in others} == {"a", "b"}
        finally:
            await gone.close()
    lines = [record.message for record in caplog.records if first.url in record.message]
    assert sum("gets no requests: it cannot be reached" in line for line in lines) == 1
    assert sum("is used: other has m" in line for line in lines) == 2


async def test_a_server_that_fails_is_avoided_until_it_is_looked_at() -> None:
    """It may be well when looked at and fail again: then for longer each time."""
    clock = Clock()
    failing = answering("a")
    failing[PATH] = [(503, {"error": {"message": "no"}})]
    with fakes(failing, answering("b")) as servers:
        bad = servers[0]
        async with started(servers, clock) as made:
            for times, wait in enumerate([0.5, 1, 2, 4], 1):
                for number in range(40):
                    assert await answer(made, chat(f"{times} {number} " * 100)) == "b"
                assert asked_of(bad) == times
                assert await clock.waits() == [wait, 5]
                await clock.wake(wait)
                assert await clock.waits() == [5, 5]


async def test_one_that_is_avoided_is_better_than_none() -> None:
    """A request that makes servers fail does not make the others fail."""
    clock = Clock()
    poisoned = answering("x")
    poisoned[PATH].insert(0, (500, {"error": {"message": "a bug"}}))
    with fakes(poisoned) as [one], fakes(dict(poisoned)) as [two]:
        two.answers[PATH] = list(one.answers[PATH])
        async with started([one, two], clock) as made:
            with pytest.raises(BackendUnavailableError, match="no server could answer"):
                await answer(made)
            assert await clock.waits() == [0.5, 0.5]
            assert made.unavailable is None
            assert await answer(made) == "x"


async def test_all_down() -> None:
    """Why, for each of them; the model can answer as soon as one is back."""
    clock = Clock()
    with fakes(answering("a"), answering("b")) as servers:
        a, b = servers
        made = backend(servers, clock)
        await made.start()
    try:
        await clock.wake()
        reason = made.unavailable or ""
        assert reason.startswith("none of its 2 servers can answer: ")
        for server in (a, b):
            assert f"{server.url}: it cannot be reached" in reason
        with pytest.raises(BackendUnavailableError, match="none of its 2 servers"):
            await answer(made)
        with fake(answering("b"), port(b)):
            await clock.wake()
            assert made.unavailable is None
            assert await answer(made) == "b"
    finally:
        await made.close()


async def test_start_needs_one_server() -> None:
    """Others join when they come up. With none it fails, and says why of each."""
    clock = Clock()
    with fakes(answering("a"), answering("b")) as servers:
        first, second = servers
    with pytest.raises(BackendUnavailableError) as raised:
        await backend(servers, clock).start()
    assert first.url in raised.value.message
    assert second.url in raised.value.message
    with fake(answering("b"), port(second)):
        async with started(servers, clock) as made:
            assert await answer(made) == "b"
            with fake(answering("a"), port(first)):
                await clock.wake()
                assert await clock.waits() == [5, 5]
                found = {await answer(made, chat(f"{number} " * 100)) for number in range(24)}
                assert found == {"a", "b"}


@pytest.mark.parametrize(
    ("card", "said"),
    [
        ({**CARD, "context_window": 2048}, "its context has 2048 tokens, not 4096"),
        ({**CARD, "context_window": None}, "its context has an unknown number of tokens"),
        ({**CARD, "id": "n"}, "its model is 'n', not 'm'"),
        ({**CARD, "owned_by": "vllm"}, "a server of the kind 'vllm', not 'other'"),
        (
            {**CARD, "architecture": {"input_modalities": ["text", "image"]}},
            "its messages may not have audio, video",
        ),
    ],
)
async def test_another_model_is_refused(
    card: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Logged, and part of the reasons; it joins when it has the right one."""
    clock = Clock()
    with fakes(answering("a"), answering("b", card=card)) as servers:
        a, b = servers
        async with started(servers, clock) as made:
            for number in range(24):
                assert await answer(made, chat(f"{number} " * 100)) == "a"
            assert asked_of(b) == 0
            for _ in range(3):
                await clock.wake()
            [line] = [each.message for each in caplog.records if "gets no requests" in each.message]
            assert line.startswith(b.url)
            assert said in line
            a.answers["/v1/models"] = [(500, {"error": {"message": "broken"}})]
            await clock.wake()
            assert f"{a.url}: broken" in (made.unavailable or "")
            assert said in (made.unavailable or "")
            b.answers["/v1/models"] = [(200, {"data": [CARD]})]
            await clock.wake()
            assert await answer(made) == "b"


async def test_a_server_that_is_started_anew_with_another_model() -> None:
    """So quickly that nobody saw it away."""
    clock = Clock()
    with fakes(answering("a"), answering("b")) as servers:
        async with started(servers, clock) as made:
            card = {**CARD, "context_window": 1024}
            servers[0].answers["/v1/models"] = [(200, {"data": [card]})]
            await clock.wake()
            assert await clock.waits() == [0.5, 5]
            for number in range(24):
                assert await answer(made, chat(f"{number} " * 100)) == "b"


def enginebay(text: str, slots: int | None = None, **state: Any) -> dict[str, list[Answer]]:
    """An Enginebay."""
    card = {"id": "m", "owned_by": "enginebay", "context_length": 99, "state": "ready", **state}
    whole: Answer = (200, {"choices": []})  # which answers what it honours
    props = {"chat_template": "T", "total_slots": slots}
    answers = answering(text, whole, card=card)
    return {**answers, "/props?model=m": [(200, props)]}


@pytest.mark.parametrize(
    ("state", "error"),
    [("draining", None), ("loading", "its engine restarts"), ("failed", "no GPU"), ("stuck", "?")],
)
async def test_an_enginebay_that_says_so_gets_no_requests(state: str, error: str | None) -> None:
    """Streams that run there go on to their end."""
    clock, gate = Clock(), Event()

    def until() -> Iterator[bytes]:
        yield PIECE
        gate.wait(60)
        yield said("y")

    with fakes(enginebay("a"), enginebay("b")) as servers:
        a, b = servers
        async with started(servers, clock) as made:
            a.answers[PATH], b.answers[PATH] = [(200, until())], [(503, {})]
            async with aclosing(made.generate(chat("Hi"))) as running:
                assert (await anext(running)).parts
                b.answers[PATH] = [(200, said("b"))]
                [card] = a.answers["/v1/models"][0][1]["data"]
                card.update(state=state, error=error, stage="s")
                await clock.wake()
                for number in range(24):
                    assert await answer(made, chat(f"{number} " * 100)) == "b"
                gate.set()
                rest = [part async for delta in running for part in delta.parts]
            assert "".join(str(part) for part in rest).count("y") == 1
            b.answers["/v1/models"] = [(503, {})]
            await clock.wake()
            assert f"{a.url}: its model is {state}" in (made.unavailable or "")
            assert (error or "") in (made.unavailable or "")


async def test_an_enginebay_whose_model_is_unloaded(caplog: pytest.LogCaptureFixture) -> None:
    """Gets requests only if no other server can answer, which make it load."""
    caplog.set_level(logging.INFO)
    clock = Clock()
    with fakes(enginebay("a"), enginebay("b")) as servers:
        a, b = servers
        async with started(servers, clock) as made:
            [card] = a.answers["/v1/models"][0][1]["data"]
            card.update(state="unloaded", loaded_at=None)
            await clock.wake()
            await clock.wake()
            ours = [each for each in caplog.records if each.name == "enginebay_remote.health"]
            said = [each.message for each in ours if a.url in each.message]
            assert said[1:] == [f"{a.url} is used if there is no other: its model is unloaded"]
            for number in range(24):
                assert await answer(made, chat(f"{number} " * 100)) == "b"
            b.answers["/v1/models"] = [(503, {})]
            await clock.wake()
            assert await answer(made) == "a"


@pytest.mark.parametrize("kind", ["vllm", "sglang", "llama-server"])
async def test_health_of_other_servers(kind: str) -> None:
    """Their `/health` counts, if they have one, whatever it says with a 200."""
    clock = Clock()
    with fakes(answering("a"), answering("b")) as servers:
        a = servers[0]
        for server in servers:
            server.answers["/props"] = [(200, {"total_slots": 2})]
        a.answers["/health"] = [(200, b"")]
        async with started(servers, clock, server=kind) as made:
            await clock.wake()
            assert await clock.waits() == [5, 5]
            a.answers["/health"] = [(503, {"error": {"message": "Loading model"}})]
            await clock.wake()
            assert await clock.waits() == [0.5, 5]
            for number in range(24):
                assert await answer(made, chat(f"{number} " * 100)) == "b"
            a.answers["/health"] = [(200, {"status": "ok"})]
            await clock.wake()
            assert await clock.waits() == [5, 5]


async def test_how_many_choices_they_compute() -> None:
    """All usable servers together, if they say, as they come and go."""
    clock, told = Clock(), list[int | None]()
    with fakes(enginebay("a", 4), enginebay("b", 3)) as servers:
        made = backend(servers, clock, told.append)
        info = await made.start()
        try:
            assert (info.max_batch_size, told[-1]) == (7, 7)
            a, b = servers
            a.answers["/v1/models"].insert(0, (503, {}))
            await clock.wake()
            assert told[-1] == 3
            await clock.wake()
            assert told[-1] == 7
            b.answers["/v1/models"].insert(0, (503, {}))
            b.answers["/props?model=m"] = [(200, {"chat_template": "T"})]
            await clock.wake()
            await clock.wake()
            assert told[-1] is None
        finally:
            await made.close()


async def test_chat_templates_are_compared() -> None:
    """Of servers that show theirs."""
    with fakes(enginebay("a"), enginebay("b")) as servers:
        servers[1].answers["/props?model=m"] = [(200, {"chat_template": "U"})]
        async with started(servers, Clock()) as made:
            for number in range(24):
                assert await answer(made, chat(f"{number} " * 100)) == "a"


async def test_a_server_that_is_silent() -> None:
    """As one whose machine hangs: what waits there moves on, what was said there ends."""
    clock, gate = Clock(), Event()
    with fakes(answering("a"), answering("b")) as servers:
        a, b = servers
        upstreams = [
            Upstream(each.url, Http(each.url, quick=0.2, retries=0, watches=False))
            for each in servers
        ]
        pool = Pool(
            upstreams,
            wanted=Wanted(),
            moves=2,
            report_batch_size=lambda choices: None,
            sleep=clock.sleep,
        )
        made = backend(servers, clock)
        made._servers = pool
        b.answers["/v1/models"] = [(503, {})]
        await made.start()
        try:
            hangs = (200, iter(gate.wait, True))
            a.answers[PATH] = [(200, itertools.chain([PIECE], iter(gate.wait, True))), hangs]
            talking, waiting = made.generate(chat("Hi")), made.generate(chat("Ho"))
            await anext(talking)
            rest, first = (asyncio.ensure_future(anext(each)) for each in (talking, waiting))
            while asked_of(a) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0)
            a.answers["/v1/models"] = [hangs]
            b.answers["/v1/models"] = [(200, {"data": [CARD]})]
            await clock.wake()
            assert "b" in str(await first)
            with pytest.raises(BackendUnavailableError, match="not even to a look"):
                await rest
            assert upstreams[0].reason == "it did not answer within 0.2 seconds"
            await waiting.aclose()
        finally:
            gate.set()
            await made.close()


async def test_servers_that_are_loading_at_start_are_waited_for() -> None:
    """As after a power cut: until one has its model, or none will have it."""
    clock = Clock()
    with fakes(enginebay("a", state="loading", stage="weights"), enginebay("b")) as servers:
        a, b = servers
        b.answers["/v1/models"] = [(502, {})]
        made = backend(servers, clock)
        start = asyncio.ensure_future(made.start())
        try:
            assert await clock.waits() == [0.5, 0.5]
            assert await clock.wake() == [1, 1]
            assert a.asked[-1] == ("/v1/models", None)
            [card] = a.answers["/v1/models"][0][1]["data"]
            card.update(state="failed", error="no GPU")
            clock.wake_only()
            with pytest.raises(BackendUnavailableError, match="its model is failed"):
                await start
            card.update(state="loading")
            start = asyncio.ensure_future(made.start())
            assert await clock.waits() == [0.5, 0.5]
            card.update(state="ready")
            clock.wake_only()
            await start
            assert await answer(made) == "a"
        finally:
            await made.close()


async def test_a_server_that_is_refused_is_not_tried_again_and_again() -> None:
    """But only when it has loaded its model anew."""
    clock = Clock()
    with fakes(enginebay("a"), enginebay("b")) as servers:
        a, b = servers
        b.answers["/props?model=m"] = [(200, {"chat_template": "U"})]
        async with started(servers, clock) as made:
            for _ in range(3):
                await clock.wake()
            assert asked_of(b) == 1  # for what it honours
            [card] = b.answers["/v1/models"][0][1]["data"]
            card.update(state="unloaded", loaded_at=None)
            await clock.wake()
            assert asked_of(b) == 1
            a.answers["/v1/models"] = [(503, {})]
            b.answers["/props?model=m"] = [(200, {"chat_template": "T"})]
            await clock.wake()
            assert "its chat template is another" in (made.unavailable or "")
            card.update(state="ready", loaded_at=2)
            await clock.wake()
            assert await answer(made) == "b"
