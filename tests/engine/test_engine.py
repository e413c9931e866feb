"""`EngineBackend`, with its engine on a thread and in a process."""

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from enginebay import (
    BackendSettings,
    BackendUnavailableError,
    Delta,
    Engine,
    EngineBackend,
    EngineDeadError,
    EngineStats,
    GenerationRequest,
    InvalidRequestError,
    Media,
    MediaPrompt,
    ServingError,
)
from enginebay.contract.backend_settings import Isolation
from enginebay.contract.engine import CONCURRENT_METHODS
from enginebay.engine.backoff import Backoff
from enginebay.engine.loop import LONG, EngineLoop
from enginebay.engine.messages import Abort, Answer, Close, Command, Event, Ping, Report
from enginebay.engine.streams import EngineStream
from enginebay.testing import ScriptedEngine, check_backend

Steps = Iterable[tuple[str, Delta | ServingError]]
AT_ONCE = Backoff(first=0)
NEVER = Backoff(first=3600, longest=3600)
logger = logging.getLogger(__name__)

both = pytest.mark.parametrize("isolation", ["thread", "process"])


def request(id: str, n: int = 1, prompt: str = "AB") -> GenerationRequest:
    return GenerationRequest(request_id=id, prompt_token_ids=tuple(map(ord, prompt)), n=n)


async def text(backend: EngineBackend, request: GenerationRequest) -> list[str]:
    texts = [""] * request.n
    async with aclosing(backend.generate(request)) as deltas:
        async for delta in deltas:
            texts[delta.index] += delta.text
    return texts


async def say(backend: EngineBackend, prompt: str) -> str:
    [said] = await text(backend, request(f"{prompt} {id(object())}", prompt=prompt))
    return said


@asynccontextmanager
async def running(create: Callable[[], Engine], **kwargs: Any) -> AsyncIterator[EngineBackend]:
    backend = EngineBackend(create, **kwargs)
    try:
        await backend.start()
        yield backend
    finally:
        await backend.close()


async def until_restarted(backend: EngineBackend) -> None:
    async with asyncio.timeout(60):
        while backend.unavailable:  # noqa: ASYNC110  (nothing to wait for is public)
            await asyncio.sleep(0.005)


class Obedient(ScriptedEngine):
    """Does what its prompts say, and otherwise says `a` for ever."""

    def __init__(self) -> None:
        super().__init__(self._obey, context_length=10**9)
        self.aborted: list[str] = []
        self.tokenized = threading.Event()

    def _obey(self, prompt: str, index: int) -> Iterator[str]:
        match prompt.split():
            case ["pid"]:
                yield str(os.getpid())
            case ["thread"]:
                yield str(threading.get_ident())
            case ["count", number]:
                yield from map(str, range(int(number)))
            case ["raise"]:
                yield "a"
                raise RuntimeError("out of memory")
            case ["exit", code]:
                yield "a"
                os._exit(int(code))
            case ["log", message]:
                logger.warning("%s", message)
                yield "logged"
            case ["aborted"]:
                yield from self.aborted
            case ["hang"]:
                yield "a"
                threading.Event().wait()
            case ["wait", "for", "tokenize"]:
                assert self.tokenized.wait(60)
                yield "tokenized"
            case _:
                while True:
                    yield "a"

    def add_request(self, request: GenerationRequest) -> None:
        super().add_request(request)
        match self.detokenize(request.prompt_token_ids):
            case "bad":
                raise InvalidRequestError("no")
            case "worse":
                raise KeyError("oops")

    def step(self) -> Steps:
        for request_id, item in super().step():
            if request_id == "poison":
                self.abort_request(request_id)
                yield request_id, ServingError("this one")
            else:
                yield request_id, item

    def abort_request(self, request_id: str) -> None:
        super().abort_request(request_id)
        self.aborted.append(request_id)

    def embed(self, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
        match self.detokenize(prompts[0]):
            case "thread":
                return [[float(threading.get_ident())]]
            case "wrong":
                raise InvalidRequestError("not this one", param="input")
            case "oops":
                raise KeyError("oops")
            case "exit":
                raise SystemExit(3)
        return [[float(token) for token in prompt] for prompt in prompts]

    def tokenize_pair(self, query: str, document: str) -> list[int]:
        if not document:
            raise InvalidRequestError("no document")
        return [len(query), len(document)]

    def rerank(self, pairs: Sequence[Sequence[int]]) -> list[float]:
        if pairs[0] == (0, 1):
            raise KeyError("oops")
        return [query / document for query, document in pairs]

    def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        match text:
            case "fail":
                raise InvalidRequestError("no such text")
            case "oops":
                raise KeyError("oops")
            case "exit":
                raise SystemExit(3)
        if text == "set":
            self.tokenized.set()
        return super().tokenize(text, add_special_tokens=add_special_tokens)


def refuse() -> Engine:
    raise BackendUnavailableError("install it")


def fall() -> Engine:
    raise LookupError("no such tensor")


def load(settings: BackendSettings) -> Engine:
    settings.report_progress("weights", 0.5)
    return ScriptedEngine(settings.options)


def once(marker: str) -> Engine:
    """Can be built the first time and the third."""
    with open(marker, "a+") as file:  # noqa: PTH123
        file.write("x")
        file.seek(0)
        if len(file.read()) == 2:
            raise BackendUnavailableError("no memory yet")
    return Obedient()


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
            if any(choice.request.request_id == "kill" for choice in self._choices):
                raise RuntimeError
            return super().step()

        def close(self) -> None:
            threads.add(threading.get_ident())

    async with running(Recording, backoff=AT_ONCE) as backend:
        assert await text(backend, request("1")) == ["ab"]
        with pytest.raises(EngineDeadError):
            await text(backend, request("kill"))
        await until_restarted(backend)
        assert await text(backend, request("2")) == ["ab"]
    assert len(threads) == 1
    assert threading.get_ident() not in threads


@both
async def test_a_step_crosses_to_the_event_loop_once(
    isolation: Isolation, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(partial(ScriptedEngine, ["a", "b", "c"]), isolation=isolation) as backend:
        crossings = 0
        loop = asyncio.get_running_loop()
        call_soon_threadsafe = loop.call_soon_threadsafe

        def counted(callback: Any, *args: Any, **kwargs: Any) -> object:
            nonlocal crossings
            crossings += any(isinstance(argument, list) for argument in args)
            return call_soon_threadsafe(callback, *args, **kwargs)

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        assert await text(backend, request("1", n=8)) == ["abc"] * 8
        assert crossings == 4  # three pieces and the end, whatever n is


@both
async def test_stats_arrive(isolation: Isolation) -> None:
    async with running(partial(ScriptedEngine, ["a", "b"]), isolation=isolation) as backend:
        assert backend.stats == EngineStats()
        await text(backend, request("1", n=2))
        await backend.ping()
        assert backend.stats == EngineStats(
            running=0, waiting=0, kv_used=0, steps=3, cache_queries=2, cache_hits=0, preempted=0
        )


def test_stats_cross_twice_a_second() -> None:
    """And when the work is done; an engine that fails to tell them lives on."""

    class Timed(ScriptedEngine):
        def step(self) -> Steps:
            nonlocal now
            now += 0.2
            return super().step()

        def stats(self) -> EngineStats:
            if now > 1.3:
                raise ValueError("no")
            return super().stats()

    def emit(event: Event) -> None:
        events.append(event)
        steps = sum(isinstance(event, list) for event in events)
        for command in ends.pop(steps, ()):
            loop.send(command)
        if isinstance(event, Report) and not ends:
            loop.send(Close())

    now = 0.0
    events: list[Event] = []
    ends: dict[int, list[Command]] = {6: [Abort("1"), request("2")], 8: [Abort("2")]}
    loop = EngineLoop(lambda: Timed("abcdefghi"), emit, clock=lambda: now)
    loop.send(request("1"))
    loop.send(Ping(7))
    loop.run()
    reports = [event.stats for event in events if isinstance(event, Report)]
    told = [(stats.steps, stats.running) for stats in reports]
    assert told == [(1, 1), (4, 1), (7, None), (8, None)]
    assert events[1] == Answer(7, None)


@pytest.mark.parametrize("plain", [True, False])
async def test_texts_do_not_wait_for_long_ones(plain: bool) -> None:
    """SEC-9: however many of these somebody sends."""
    go_on = threading.Event()

    class Slow(ScriptedEngine):
        def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
            assert len(text) <= LONG or go_on.wait(60)
            return [len(text)]

        def tokenize_plain(self, text: str, *, add_special_tokens: bool) -> list[int]:
            return self.tokenize(text, add_special_tokens=add_special_tokens)

    async with running(lambda: Slow("abc")) as backend:
        tokenize = backend.tokenize_plain if plain else backend.tokenize
        long = [
            asyncio.create_task(tokenize("a" * (LONG + 1), add_special_tokens=False))
            for _ in range(9)
        ]
        async with asyncio.timeout(60):
            assert await tokenize("a", add_special_tokens=False) == [1]
        assert not any(task.done() for task in long)
        go_on.set()
        assert await asyncio.gather(*long) == [[LONG + 1]] * 9


async def test_texts_do_not_wait_for_media() -> None:
    """And media that nobody awaits any longer are not decoded."""
    read: list[str] = []
    go_on = threading.Event()

    class Slow(ScriptedEngine):
        def tokenize_media(
            self, pieces: Sequence[str | Media], *, add_special_tokens: bool
        ) -> MediaPrompt:
            read.append(str(pieces[0]))
            assert go_on.wait(60)
            return MediaPrompt((), ())

    item = Media(kind="image", data=b"", type="image/png")
    async with running(lambda: Slow("abc")) as backend:
        tasks = [
            asyncio.create_task(backend.tokenize_media([str(n), item], add_special_tokens=False))
            for n in range(9)
        ]
        async with asyncio.timeout(60):
            assert await backend.tokenize("a", add_special_tokens=False)
        for task in tasks[:-1]:
            task.cancel()
        await asyncio.wait(tasks[:-1])
        go_on.set()
        await tasks[-1]
    assert read == ["0", "1", "8"]


@both
async def test_a_ping_is_answered_between_steps(isolation: Isolation) -> None:
    async with running(Obedient, isolation=isolation, grace=0.05) as backend:
        endless = backend.generate(request("1", prompt="endless"))
        await anext(endless)
        await backend.ping()
        await endless.aclose()
        waiting = asyncio.create_task(say(backend, "wait for tokenize"))
        await asyncio.sleep(0)
        ping = asyncio.ensure_future(backend.ping())
        assert await backend.tokenize("set", add_special_tokens=False)
        await ping
        assert await waiting == "tokenized"
    with pytest.raises(EngineDeadError):
        await backend.ping()


@both
async def test_a_slow_reader_gets_merged_deltas(isolation: Isolation) -> None:
    async with running(partial(ScriptedEngine, ["a", "b", "c"]), isolation=isolation) as backend:
        stream = backend.generate(request("slow"))
        first = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        await text(backend, request("other"))
        deltas = [await first]
        async for delta in stream:
            deltas.append(delta)
    assert "".join(delta.text for delta in deltas) == "abc"
    assert sum(len(delta.token_ids) for delta in deltas) == 4
    assert len(deltas) < 4
    assert deltas[-1].finish_reason == "stop"


@both
async def test_a_dead_engine_fails_what_is_in_flight(isolation: Isolation) -> None:
    async with running(Obedient, isolation=isolation, backoff=NEVER) as backend:
        results = await asyncio.gather(
            *(text(backend, request(str(i))) for i in range(3)),
            say(backend, "raise"),
            return_exceptions=True,
        )
        assert all(isinstance(result, EngineDeadError) for result in results)
        assert {str(r) for r in results} == {"the engine died: RuntimeError: out of memory"}
        with pytest.raises(BackendUnavailableError, match=r"restarting.*RuntimeError: out of mem"):
            await say(backend, "count 1")
        with pytest.raises(BackendUnavailableError, match="restarting"):
            await backend.tokenize("a", add_special_tokens=True)
        assert backend.unavailable == "restarting: the engine died: RuntimeError: out of memory"
    assert backend.unavailable is None
    with pytest.raises(EngineDeadError, match="unloaded"):
        await say(backend, "count 1")


@both
async def test_a_dead_engine_is_built_again(isolation: Isolation) -> None:
    async with running(Obedient, isolation=isolation, backoff=AT_ONCE) as backend:
        for _ in range(2):
            with pytest.raises(EngineDeadError):
                await say(backend, "raise")
            await until_restarted(backend)
            assert await say(backend, "count 3") == "012"


@both
@pytest.mark.parametrize("settled", [0.0, 3600.0])
async def test_the_wait_grows_until_the_engine_is_healthy(
    isolation: Isolation, settled: float, caplog: pytest.LogCaptureFixture
) -> None:
    class Recorded(Backoff):
        def delay(self, failures: int) -> float:
            asked.append(failures)
            return 0

    asked: list[int] = []
    backoff = Recorded(settled=settled)
    async with running(Obedient, isolation=isolation, backoff=backoff) as backend:
        for _ in range(2):
            with pytest.raises(EngineDeadError):
                await say(backend, "raise")
            await until_restarted(backend)
    assert asked == ([1, 1] if settled == 0 else [1, 2])


async def test_an_engine_that_cannot_be_closed(caplog: pytest.LogCaptureFixture) -> None:
    class Clinging(Obedient):
        def close(self) -> None:
            raise RuntimeError("not now")

    async with running(Clinging, backoff=AT_ONCE) as backend:
        with pytest.raises(EngineDeadError):
            await say(backend, "raise")
        await until_restarted(backend)
        assert await say(backend, "count 2") == "01"
    assert caplog.text.count("the engine could not be closed") == 2


def test_the_wait_doubles_up_to_a_minute() -> None:
    delays = [Backoff().delay(failures) for failures in range(1, 9)]
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60]
    assert Backoff().delay(10**6) == 60


@both
async def test_a_restart_that_fails_is_tried_again(
    isolation: Isolation, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    create = partial(once, str(tmp_path / "marker"))
    async with running(create, isolation=isolation, backoff=AT_ONCE) as backend:
        with pytest.raises(EngineDeadError):
            await say(backend, "raise")
        await until_restarted(backend)
        assert await say(backend, "count 2") == "01"
    assert "could not be restarted: no memory yet" in caplog.text


@both
async def test_what_add_request_raises_fails_that_request_alone(isolation: Isolation) -> None:
    async with running(Obedient, isolation=isolation) as backend:
        good, bad, worse = await asyncio.gather(
            *(say(backend, prompt) for prompt in ("count 5", "bad", "worse")),
            return_exceptions=True,
        )
    assert good == "01234"
    assert isinstance(bad, InvalidRequestError)
    assert isinstance(worse, ServingError)
    assert worse.status == 500


@both
async def test_a_step_can_fail_one_request_alone(isolation: Isolation) -> None:
    async with running(Obedient, isolation=isolation) as backend:
        good, poison = await asyncio.gather(
            say(backend, "count 5"), text(backend, request("poison")), return_exceptions=True
        )
    assert good == "01234"
    assert isinstance(poison, ServingError)
    assert poison.message == "this one"


class Talkative(ScriptedEngine):
    """Says everything twice, and something to nobody."""

    def __init__(self) -> None:
        super().__init__(["a", "b"])

    def step(self) -> Steps:
        for request_id, item in super().step():
            assert isinstance(item, Delta)
            yield request_id, replace(item, text="")
            yield request_id, item
            yield "nobody", item


@both
async def test_nothing_comes_behind_a_finish(isolation: Isolation) -> None:
    """Nor is one taken for that of another choice, which would wait for its own for ever."""
    async with running(Talkative, isolation=isolation) as backend:
        asked = request("a", n=2)
        async with aclosing(backend.generate(asked)) as found:
            deltas = [delta async for delta in found]
    assert {delta.index for delta in deltas} == {0, 1}
    assert sum(delta.finish_reason is not None for delta in deltas) == 2


@both
async def test_an_engine_that_cannot_be_built_says_why(isolation: Isolation) -> None:
    backend = EngineBackend(refuse, isolation=isolation)
    with pytest.raises(BackendUnavailableError, match="install it"):
        await backend.start()
    await backend.close()
    backend = EngineBackend(fall, isolation=isolation)
    with pytest.raises(LookupError, match="no such tensor"):
        await backend.start()
    assert backend.unavailable is None
    await backend.close()


@both
async def test_one_request_id_at_a_time(isolation: Isolation) -> None:
    async with running(partial(ScriptedEngine, ["a", "b"]), isolation=isolation) as backend:
        stream = backend.generate(request("1"))
        await anext(stream)
        with pytest.raises(InvalidRequestError, match="already in use"):
            await text(backend, request("1"))
        await stream.aclose()
        assert await text(backend, request("1")) == ["ab"]


@both
async def test_closing_the_stream_aborts(isolation: Isolation) -> None:
    async with running(Obedient, isolation=isolation) as backend:
        stream = backend.generate(request("endless"))
        await anext(stream)
        await stream.aclose()
        assert await say(backend, "aborted") == "endless"


@both
async def test_tokenizing_does_not_wait_for_a_step(isolation: Isolation) -> None:
    async with running(Obedient, isolation=isolation) as backend:
        waiting = asyncio.create_task(say(backend, "wait for tokenize"))
        assert await backend.tokenize("set", add_special_tokens=True) == [115, 101, 116]
        assert await waiting == "tokenized"
        assert await backend.detokenize([104, 105]) == "hi"
        with pytest.raises(InvalidRequestError, match="no such text"):
            await backend.tokenize("fail", add_special_tokens=True)
        for failing, error in (("oops", "KeyError: 'oops'"), ("exit", "SystemExit: 3")):
            with pytest.raises(ServingError, match=f"the engine failed to tokenize: {error}"):
                await backend.tokenize(failing, add_special_tokens=True)
        assert not backend.unavailable


def test_methods_that_are_called_from_any_thread_say_so() -> None:
    documented = {
        name
        for name, method in vars(Engine).items()
        if "from any thread" in (method.__doc__ or "").lower()
    }
    assert documented == CONCURRENT_METHODS


async def test_tokenizing_is_not_done_on_the_engine_thread() -> None:
    class Threads(Obedient):
        def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
            return [threading.get_ident()]

    async with running(Threads) as backend:
        engine_thread = float(await say(backend, "thread"))
        [tokenizer_thread] = await backend.tokenize("a", add_special_tokens=False)
        assert engine_thread != tokenizer_thread != threading.get_ident()


@both
async def test_embedding_happens_between_steps(isolation: Isolation) -> None:
    async with running(Obedient, isolation=isolation) as backend:
        stream = backend.generate(request("endless"))
        await anext(stream)
        thread = [list(map(ord, "thread"))]
        assert (await backend.embed(thread))[0][0] == float(await say(backend, "thread"))
        assert await backend.embed([[3, 4], (5,)]) == [[3, 4], [5]]
        await anext(stream)
        await stream.aclose()


@both
async def test_an_embedding_that_fails_fails_alone(isolation: Isolation) -> None:
    async with running(Obedient, isolation=isolation, backoff=NEVER) as backend:
        stream = backend.generate(request("endless"))
        await anext(stream)
        with pytest.raises(InvalidRequestError, match="not this one") as caught:
            await backend.embed([list(map(ord, "wrong"))])
        assert caught.value.param == "input"
        with pytest.raises(ServingError, match="the engine failed to embed: KeyError: 'oops'"):
            await backend.embed([list(map(ord, "oops"))])
        await anext(stream)
        await stream.aclose()


@both
async def test_reranking_happens_between_steps(isolation: Isolation) -> None:
    async with running(Obedient, isolation=isolation, backoff=NEVER) as backend:
        stream = backend.generate(request("endless"))
        await anext(stream)
        pair = await backend.tokenize_pair("query", "document")
        assert pair == [5, 8]
        assert await backend.rerank([pair, (3, 4)]) == [5 / 8, 3 / 4]
        with pytest.raises(InvalidRequestError, match="no document"):
            await backend.tokenize_pair("query", "")
        with pytest.raises(ServingError, match="the engine failed to rerank: KeyError: 'oops'"):
            await backend.rerank([(0, 1)])
        await anext(stream)
        await stream.aclose()


@both
async def test_a_dead_engine_fails_waiting_embeddings(isolation: Isolation) -> None:
    async with running(Obedient, isolation=isolation, backoff=NEVER) as backend:
        results = await asyncio.gather(
            backend.embed([list(map(ord, "exit"))]),
            backend.embed([[1]]),
            backend.rerank([[1, 2]]),
            return_exceptions=True,
        )
        assert [type(result) for result in results] == [EngineDeadError] * 3
        with pytest.raises(BackendUnavailableError, match="restarting"):
            await backend.embed([[1]])


@both
async def test_engines_make_no_embeddings_unless_they_say_how(isolation: Isolation) -> None:
    async with running(partial(ScriptedEngine, ["a"]), isolation=isolation) as backend:
        with pytest.raises(InvalidRequestError, match="does not support embeddings"):
            await backend.embed([[1]])
        for call in (backend.rerank([[1]]), backend.tokenize_pair("a", "b")):
            with pytest.raises(InvalidRequestError, match="does not support reranking"):
                await call
        assert await text(backend, request("1")) == ["a"]


@both
async def test_progress_is_reported(isolation: Isolation) -> None:
    reports: list[tuple[str, float]] = []
    settings = BackendSettings(
        name="m",
        path=".",
        options=["ok"],
        report_progress=lambda stage, fraction: reports.append((stage, fraction)),
    )
    async with running(partial(load, settings), isolation=isolation) as backend:
        assert await say(backend, "hi") == "ok"
    assert reports == [("weights", 0.5)]
    nobody_watches = BackendSettings(name="m", path=".", options=["ok"])
    async with running(partial(load, nobody_watches), isolation=isolation) as backend:
        assert await say(backend, "hi") == "ok"


@both
async def test_logs_arrive(isolation: Isolation, caplog: pytest.LogCaptureFixture) -> None:
    async with running(Obedient, isolation=isolation) as backend:
        assert await say(backend, "log heard") == "logged"
        pid = int(await say(backend, "pid"))
    [record] = [record for record in caplog.records if record.name == __name__]
    assert (record.levelname, record.getMessage(), record.process) == ("WARNING", "heard", pid)
    assert (pid == os.getpid()) == (isolation == "thread")


@both
async def test_the_contract_is_kept(isolation: Isolation) -> None:
    create: Callable[[], Engine] = partial(ScriptedEngine, PIECES)
    await check_backend(partial(EngineBackend, create, isolation=isolation))


PIECES: Sequence[str] = ["Hi", " the", "re,", " how", " are", " you", "?", " ok"]


async def test_an_engine_that_runs_ahead_has_its_tokens_joined() -> None:
    """One in step is handed over token by token; what piles up is not, but read together."""
    made, goes_on = threading.Event(), threading.Semaphore(0)

    class Told(ScriptedEngine):
        def step(self) -> Steps:
            goes_on.acquire()
            yield from super().step()
            made.set()

    taken: list[str] = []
    read: list[str] = []

    def take(delta: Delta) -> bool:
        if not delta.finish_reason:
            taken.append(delta.text)
        return not delta.finish_reason

    async def reading(backend: EngineBackend) -> None:
        deltas = backend.generate(request("1"))
        assert isinstance(deltas, EngineStream)
        async with aclosing(deltas):
            deltas.hand_over(take)
            async for delta in deltas:
                read.append(delta.text)

    def steps(count: int) -> None:
        """Let the engine make some while the event loop does something else."""
        for _ in range(count):
            made.clear()
            goes_on.release()
            assert made.wait(60)

    async with asyncio.timeout(60), running(lambda: Told("abcdefgh")) as backend:
        task = asyncio.create_task(reading(backend))
        for count in (1, 2, 3):
            goes_on.release()
            while len(taken) < count:  # noqa: ASYNC110  (nobody tells)
                await asyncio.sleep(0)
        steps(4)  # of which the last may still be on its way
        goes_on.release(2)
        await task
    assert taken[:3] == ["a", "b", "c"]
    assert "".join(taken) + "".join(read) in ("abcdefgh", "abchdefg")
    assert len(read[0]) >= 3
