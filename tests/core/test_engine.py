"""`EngineBackend`: one thread, one crossing a step, aborts, deaths."""

import asyncio
import threading
from collections.abc import Iterable
from contextlib import aclosing

import pytest

from core.testing import ScriptedEngine
from enginebay import (
    BackendUnavailableError,
    Delta,
    Engine,
    EngineBackend,
    EngineDeadError,
    GenerationRequest,
    InvalidRequestError,
    ServingError,
)

Steps = Iterable[tuple[str, Delta | ServingError]]


def request(id: str, n: int = 1) -> GenerationRequest:
    return GenerationRequest(request_id=id, prompt_token_ids=(65, 66), n=n)


async def text(backend: EngineBackend, request: GenerationRequest) -> list[str]:
    texts = [""] * request.n
    async with aclosing(backend.generate(request)) as deltas:
        async for delta in deltas:
            texts[delta.index] += delta.text
    return texts


async def test_everything_but_tokenizing_happens_on_one_thread() -> None:
    threads: set[int] = set()

    class Recording(ScriptedEngine):
        def __init__(self) -> None:
            threads.add(threading.get_ident())
            super().__init__(["a", "b"])

        def add_request(self, request: GenerationRequest) -> None:
            threads.add(threading.get_ident())
            super().add_request(request)

        def step(self) -> Steps:
            threads.add(threading.get_ident())
            return super().step()

        def close(self) -> None:
            threads.add(threading.get_ident())

    backend = EngineBackend(Recording)
    await backend.start()
    assert await text(backend, request("1")) == ["ab"]
    await backend.close()
    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_a_step_crosses_to_the_event_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = EngineBackend(lambda: ScriptedEngine(["a", "b", "c"]))
    await backend.start()
    crossings = 0
    loop = asyncio.get_running_loop()
    call_soon_threadsafe = loop.call_soon_threadsafe

    def counted(callback: object, *args: object, **kwargs: object) -> object:
        nonlocal crossings
        if callback == backend._deliver:
            crossings += 1
        return call_soon_threadsafe(callback, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    assert await text(backend, request("1", n=8)) == ["abc"] * 8
    assert crossings == 4  # three pieces and the end, whatever n is
    await backend.close()


async def test_a_slow_reader_gets_merged_deltas() -> None:
    backend = EngineBackend(lambda: ScriptedEngine(["a", "b", "c"]))
    await backend.start()
    stream = backend.generate(request("slow"))
    other = asyncio.create_task(text(backend, request("other")))
    first = asyncio.ensure_future(anext(stream))
    await other
    deltas = [await first]
    async for delta in stream:
        deltas.append(delta)
    assert "".join(delta.text for delta in deltas) == "abc"
    assert sum(len(delta.token_ids) for delta in deltas) == 4
    assert len(deltas) < 4
    assert deltas[-1].finish_reason == "stop"
    await backend.close()


async def test_a_dead_engine_answers_everything_in_flight_and_later() -> None:
    class Dying(ScriptedEngine):
        steps = 0

        def step(self) -> Steps:
            self.steps += 1
            if self.steps == 2:
                raise RuntimeError("out of memory")
            return super().step()

    backend = EngineBackend(lambda: Dying(["a"] * 5))
    await backend.start()
    results = await asyncio.gather(
        *(text(backend, request(str(i))) for i in range(3)), return_exceptions=True
    )
    assert all(isinstance(result, EngineDeadError) for result in results)
    with pytest.raises(EngineDeadError, match="RuntimeError: out of memory"):
        await text(backend, request("later"))
    await backend.close()


async def test_what_add_request_raises_fails_that_request_alone() -> None:
    class Picky(ScriptedEngine):
        def add_request(self, request: GenerationRequest) -> None:
            super().add_request(request)
            if request.request_id == "bad":
                raise InvalidRequestError("no")
            if request.request_id == "worse":
                raise KeyError("oops")

    backend = EngineBackend(lambda: Picky(["a"] * 5))
    await backend.start()
    good, bad, worse = await asyncio.gather(
        *(text(backend, request(id)) for id in ("good", "bad", "worse")), return_exceptions=True
    )
    assert good == ["aaaaa"]
    assert isinstance(bad, InvalidRequestError)
    assert isinstance(worse, ServingError)
    assert worse.status == 500
    await backend.close()


async def test_a_step_can_fail_one_request_alone() -> None:
    class Poisoned(ScriptedEngine):
        def step(self) -> Steps:
            for request_id, item in super().step():
                if request_id == "poison":
                    self.abort_request(request_id)
                    yield request_id, ServingError("this one")
                else:
                    yield request_id, item

    backend = EngineBackend(lambda: Poisoned(["a"] * 5))
    await backend.start()
    good, poison = await asyncio.gather(
        text(backend, request("good")), text(backend, request("poison")), return_exceptions=True
    )
    assert good == ["aaaaa"]
    assert isinstance(poison, ServingError)
    await backend.close()


async def test_an_engine_that_cannot_be_built_says_why() -> None:
    def create() -> Engine:
        raise BackendUnavailableError("install it")

    backend = EngineBackend(create)
    with pytest.raises(BackendUnavailableError, match="install it"):
        await backend.start()
    await backend.close()


async def test_one_request_id_at_a_time() -> None:
    backend = EngineBackend(lambda: ScriptedEngine(["a", "b"]))
    await backend.start()
    stream = backend.generate(request("1"))
    await anext(stream)
    with pytest.raises(InvalidRequestError, match="already in use"):
        await text(backend, request("1"))
    await stream.aclose()
    assert await text(backend, request("1")) == ["ab"]
    await backend.close()


async def test_closing_the_stream_aborts() -> None:
    aborted = threading.Event()

    class Endless(ScriptedEngine):
        def abort_request(self, request_id: str) -> None:
            super().abort_request(request_id)
            aborted.set()

    backend = EngineBackend(lambda: Endless(lambda prompt, index: iter(lambda: "a", "")))
    await backend.start()
    stream = backend.generate(request("1"))
    await anext(stream)
    await stream.aclose()
    assert await asyncio.to_thread(aborted.wait, 60)
    await backend.close()
