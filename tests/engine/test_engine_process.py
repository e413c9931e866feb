"""What only an engine in a process of its own can go through."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from dataclasses import fields
from multiprocessing import Pipe
from types import MappingProxyType
from typing import Any

import psutil
import pytest

from enginebay import (
    BackendUnavailableError,
    Delta,
    Engine,
    EngineBackend,
    EngineDeadError,
    GenerationRequest,
    InvalidRequestError,
    SamplingParams,
    ServingError,
)
from enginebay.engine import wire
from enginebay.testing import ScriptedEngine
from tests.engine.test_engine import (
    AT_ONCE,
    NEVER,
    Obedient,
    Steps,
    request,
    running,
    say,
    text,
    until_restarted,
)
from tests.support import REPOSITORY


def killed_while_loading() -> Engine:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def hang_while_loading() -> Engine:
    time.sleep(3600)
    raise AssertionError


class Unpicklable(Exception):
    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")


def unpicklable_error() -> Engine:
    raise Unpicklable("this", "that")


class FailsWith(ScriptedEngine):
    def __init__(self, item: Any) -> None:
        super().__init__(["a"])
        self._item = item

    def step(self) -> Steps:
        return [(choice.request.request_id, self._item) for choice in self._choices]


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")
async def test_killed_with_streams_running() -> None:
    async with (
        running(Obedient, isolation="process", backoff=AT_ONCE) as backend,
        running(Obedient, isolation="process") as other,
    ):
        pid = int(await say(backend, "pid"))
        undisturbed = other.generate(request("other"))
        await anext(undisturbed)
        streams = [backend.generate(request(str(number))) for number in range(16)]
        for stream in streams:
            await anext(stream)
        tokenizing = asyncio.create_task(say(backend, "wait for tokenize"))
        os.kill(pid, signal.SIGKILL)
        for stream in streams:
            with pytest.raises(EngineDeadError, match=r"killed by SIGKILL \(out of memory"):
                async for _ in stream:
                    pass
        with pytest.raises(EngineDeadError):
            await tokenizing
        await until_restarted(backend)
        assert await say(backend, "count 3") == "012"
        assert int(await say(backend, "pid")) != pid
        await anext(undisturbed)
        await undisturbed.aclose()
        assert await say(other, "aborted") == "other"


@pytest.mark.parametrize("code", [0, 3])
async def test_an_exit_fails_what_is_in_flight(code: int) -> None:
    async with running(Obedient, isolation="process", backoff=NEVER) as backend:
        with pytest.raises(EngineDeadError, match=f"process exited with code {code}"):
            await say(backend, f"exit {code}")
        with pytest.raises(BackendUnavailableError, match=f"restarting.*exited with code {code}"):
            await say(backend, "count 1")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")
async def test_killed_while_loading() -> None:
    backend = EngineBackend(killed_while_loading, isolation="process", backoff=AT_ONCE)
    with pytest.raises(BackendUnavailableError, match="killed by SIGKILL"):
        await backend.start()
    assert backend.unavailable is None
    await backend.close()


def unpicklable_delta() -> Engine:
    return FailsWith(Delta(stop_reason=lambda: None))  # type: ignore[arg-type]


async def test_an_error_that_cannot_cross_arrives_as_text() -> None:
    backend = EngineBackend(unpicklable_error, isolation="process")
    with pytest.raises(RuntimeError, match="Unpicklable: this and that"):
        await backend.start()
    await backend.close()


class Unreadable(ServingError):
    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("not a number",)


def unreadable_error() -> Engine:
    return FailsWith(Unreadable("x"))


async def test_what_cannot_be_read_is_the_engines_death() -> None:
    async with running(unreadable_error, isolation="process", backoff=NEVER) as backend:
        with pytest.raises(EngineDeadError, match="cannot be read: invalid literal"):
            await text(backend, request("1"))


async def test_a_process_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("enginebay.engine.worker.main", lambda *args: None)
    backend = EngineBackend(Obedient, isolation="process")
    with pytest.raises(BackendUnavailableError, match="process could not be started"):
        await backend.start()
    await backend.close()


def test_every_field_of_a_delta_crosses() -> None:
    """Whatever fields there are; an error in a delta's place does, too."""
    ours, theirs = Pipe()
    delta = Delta(**{field.name: f"a {field.name}" for field in fields(Delta)})
    wire.send(ours, [("1", delta), ("2", InvalidRequestError("no", param="n")), ("3", Delta())])
    (_, first), (id, error), last = wire.receive(theirs)
    assert first == delta
    assert (id, type(error), error.message, error.param) == ("2", InvalidRequestError, "no", "n")
    assert last == ("3", Delta())


async def test_deltas_that_cannot_cross_are_the_engines_death() -> None:
    async with running(unpicklable_delta, isolation="process", backoff=NEVER) as backend:
        with pytest.raises(EngineDeadError, match="the engine died"):
            await text(backend, request("1"))


async def test_a_request_that_cannot_cross_fails_alone() -> None:
    async with running(Obedient, isolation="process") as backend:
        sampling = SamplingParams(logit_bias=MappingProxyType({1: 1.0}))
        odd = GenerationRequest(request_id="odd", prompt_token_ids=(65,), sampling=sampling)
        with pytest.raises(ServingError, match="cannot be sent to the engine"):
            await text(backend, odd)
        with pytest.raises(ServingError, match="cannot be sent to the engine"):
            await backend.detokenize([lambda: None])  # type: ignore[list-item]
        assert await say(backend, "count 2") == "01"


async def test_an_engine_that_cannot_be_sent_to_a_process() -> None:
    backend = EngineBackend(lambda: ScriptedEngine(["a"]), isolation="process")
    with pytest.raises(BackendUnavailableError, match="set `isolation: thread`"):
        await backend.start()
    await backend.close()


async def test_close_leaves_no_process() -> None:
    async with running(Obedient, isolation="process") as backend:
        pid = int(await say(backend, "pid"))
        stream = backend.generate(request("endless"))
        await anext(stream)
    assert is_gone(pid)
    with pytest.raises(EngineDeadError, match="unloaded"):
        async for _ in stream:
            pass


async def test_close_kills_a_process_that_hangs() -> None:
    async with running(Obedient, isolation="process", grace=0.05) as backend:
        pid = int(await say(backend, "pid"))
        await anext(backend.generate(request("1", prompt="hang")))
    assert is_gone(pid)


async def test_close_does_not_wait_for_loading() -> None:
    backend = EngineBackend(hang_while_loading, isolation="process", grace=3600)
    starting = asyncio.create_task(backend.start())
    await asyncio.sleep(0)
    starting.cancel()
    await backend.close()


async def test_close_while_waiting_to_restart() -> None:
    async with running(Obedient, isolation="process", backoff=NEVER) as backend:
        with pytest.raises(EngineDeadError):
            await say(backend, "exit 1")
    with pytest.raises(EngineDeadError, match="unloaded"):
        await say(backend, "count 1")


@pytest.mark.skipif(os.name == "nt", reason="Windows cannot send signals to one process")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_signals_are_the_servers_business(number: signal.Signals) -> None:
    """Ctrl-C and service managers signal all processes at once; requests get their grace."""
    async with running(Obedient, isolation="process") as backend:
        os.kill(int(await say(backend, "pid")), number)
        assert await say(backend, "count 3") == "012"


@pytest.mark.parametrize("prompt", ["endless", "hang"])
def test_the_process_ends_with_the_server(prompt: str) -> None:
    """Whoever reads the output sees its end only when all who hold it are gone."""
    code = f"""
import asyncio, os
from tests.engine.test_engine import EngineBackend, Obedient, request

async def main():
    backend = EngineBackend(Obedient, isolation="process", grace=0.05)
    await backend.start()
    await anext(backend.generate(request("1", prompt={prompt!r})))
    os._exit(7)

asyncio.run(main())
"""
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, stdout=subprocess.PIPE, timeout=120
    )
    assert run.returncode == 7
