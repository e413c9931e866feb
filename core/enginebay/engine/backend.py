"""The event loop's side of an engine: its streams, its calls, and its restart after a crash."""

import asyncio
import itertools
import logging
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from dataclasses import replace
from functools import partial

from enginebay.contract.backend import Backend
from enginebay.contract.backend_settings import Isolation
from enginebay.contract.engine import Engine
from enginebay.contract.errors import (
    BackendUnavailableError,
    EngineDeadError,
    InvalidRequestError,
    ModelUnloadedError,
    ServingError,
)
from enginebay.contract.media import Media, MediaPrompt
from enginebay.contract.sampling_params import ReasoningBudget
from enginebay.contract.types import Delta, EngineStats, GenerationRequest, Lora, ModelInfo
from enginebay.engine.adapters import Adapters
from enginebay.engine.backoff import Backoff
from enginebay.engine.calls import Calls, resolve
from enginebay.engine.executor import Executor, ThreadExecutor
from enginebay.engine.messages import (
    Abort,
    Answer,
    Died,
    Event,
    Exited,
    NotStarted,
    Output,
    Report,
    Started,
)
from enginebay.engine.process import ProcessExecutor
from enginebay.engine.streams import DeltaStream, EngineStream

logger = logging.getLogger(__name__)

GRACE = 10.0


class EngineBackend(Backend):
    """Runs an `Engine` on its own thread or in its own process.

    `create_engine` is called there by `start()`; for a process it must be picklable: a
    module-level function, or a `functools.partial` of one. A `report_progress` in its
    `BackendSettings` works there, too.

    When the engine dies, all requests in flight fail with `EngineDeadError`, and the engine is
    rebuilt after the delay given by `backoff`; until then requests get `BackendUnavailableError`.
    An engine whose first start fails is not retried. `close()` kills a process that has not ended
    after `grace` seconds.
    """

    def __init__(
        self,
        create_engine: Callable[[], Engine],
        *,
        isolation: Isolation = "thread",
        backoff: Backoff | None = None,
        grace: float = GRACE,
    ) -> None:
        self.isolation: Isolation = isolation
        self._executor: Executor = (
            ProcessExecutor(create_engine, grace)
            if isolation == "process"
            else ThreadExecutor(create_engine)
        )
        self._backoff = backoff or Backoff()
        self._streams: dict[str, DeltaStream] = {}
        self._in_use: dict[str, str] = {}  # what requests are called in the engine
        self._aborted: deque[str] = deque(maxlen=1000)  # nothing is pending for older ones
        self._calls = Calls(self._executor.send)
        self._adapters = Adapters()
        self._suffixes = itertools.count(1)
        self._unavailable: ServingError | None = EngineDeadError("the model is not loaded")
        self._restarting: str | None = None
        self._waiting: asyncio.TimerHandle | None = None
        self._closed = False
        self._info: ModelInfo | None = None
        self._started_at: float | None = None
        self._failures = 0
        self._stats: EngineStats | None = None

    # Everything happens on the event loop, so that no request can slip in between the engine's
    # death and the failure of all others.

    @property
    def pid(self) -> int | None:
        return self._executor.pid

    @property
    def unavailable(self) -> str | None:
        return f"restarting: {self._restarting}" if self._restarting else None

    @property
    def stats(self) -> EngineStats | None:
        return self._stats

    async def ping(self) -> None:
        await self._engine().ping()

    async def start(self) -> ModelInfo:
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[ModelInfo] = self._loop.create_future()
        self._executor.start(self._receive)
        return await self._started

    def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        """An `EngineStream`, which can be read as any generator."""
        stream = DeltaStream()
        return EngineStream(self._generate(request, stream), stream)

    async def _generate(
        self, request: GenerationRequest, stream: DeltaStream
    ) -> AsyncGenerator[Delta, None]:
        engine = self._engine()
        if request.request_id in self._in_use:
            raise InvalidRequestError(f"request id {request.request_id!r} is already in use")
        # Deltas of a request that was aborted may still be on their way, and must not be taken for
        # those of the next request with the same id.
        id = request.request_id
        if id in self._aborted:
            id = f"{id}/{next(self._suffixes)}"
        adapter = self._adapters.enter(request.adapter)
        self._in_use[request.request_id] = id
        unfinished = 0
        try:
            if (constraint := request.sampling.constraint) is not None:
                stream.compiled = await engine.call(Engine.compile, constraint)
            self._streams[id] = stream
            self._executor.send(replace(request, request_id=id, adapter=adapter))
            unfinished = request.n
            while unfinished:
                for item in await stream.take():
                    if isinstance(item, ServingError):
                        unfinished = 0
                        raise item
                    if item.finish_reason:
                        unfinished -= 1
                    yield item
        finally:
            self._streams.pop(id, None)
            del self._in_use[request.request_id]
            if unfinished:
                self._aborted.append(request.request_id)
                self._executor.send(Abort(id))
            self._free_adapter(self._adapters.leave(adapter))

    async def end_reasoning(self, request_id: str, budget: ReasoningBudget) -> int:
        engine, id = self._engine(), self._in_use.get(request_id)
        return 0 if id is None else await engine.call(Engine.end_reasoning, id, budget)

    async def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return await self._engine().call(
            Engine.tokenize, text, add_special_tokens=add_special_tokens
        )

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        return await self._engine().call(Engine.detokenize, token_ids)

    async def tokenize_plain(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return await self._engine().call(
            Engine.tokenize_plain, text, add_special_tokens=add_special_tokens
        )

    async def detokenize_plain(self, token_ids: Sequence[int]) -> str:
        return await self._engine().call(Engine.detokenize_plain, token_ids)

    async def tokenize_media(
        self, pieces: Sequence[str | Media], *, add_special_tokens: bool
    ) -> MediaPrompt:
        return await self._engine().call(
            Engine.tokenize_media, pieces, add_special_tokens=add_special_tokens
        )

    async def embed(self, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
        return await self._engine().call(Engine.embed, prompts)

    async def tokenize_pair(self, query: str, document: str) -> list[int]:
        return await self._engine().call(Engine.tokenize_pair, query, document)

    async def rerank(self, pairs: Sequence[Sequence[int]]) -> list[float]:
        return await self._engine().call(Engine.rerank, pairs)

    async def classify(self, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
        return await self._engine().call(Engine.classify, prompts)

    async def load_adapter(self, name: str, loras: Sequence[Lora]) -> None:
        in_engine = self._adapters.new_name(name)
        try:
            await self._engine().call(Engine.load_adapter, in_engine, loras)
        except asyncio.CancelledError:
            self._free_adapter(in_engine)
            raise
        self._free_adapter(self._adapters.add(name, in_engine, loras))

    async def unload_adapter(self, name: str) -> None:
        self._free_adapter(self._adapters.remove(name))

    async def close(self) -> None:
        self._closed = True
        self._restarting = None
        if self._waiting:
            self._waiting.cancel()
        self._fail("the model was unloaded", ModelUnloadedError("the model was unloaded"))
        await self._executor.close()

    def _engine(self) -> Calls:
        """Calls to the engine's methods; raises while there is no engine."""
        if self._unavailable:
            raise type(self._unavailable)(self._unavailable.message)
        return self._calls

    def _receive(self, event: Event) -> None:
        match event:
            case list():
                self._deliver(event)
            case Report(stats):
                self._stats = stats
            case Answer():
                self._calls.answer(event)
            case Started(info):
                self._started_at = self._loop.time()
                self._stats = EngineStats()
                if not self._closed:
                    self._unavailable = self._restarting = None
                if self._info:
                    self._restore_adapters(info.adapters)
                    logger.info("the engine is running again")
                else:
                    self._adapters.configure(info.adapters)
                self._info = info
                resolve(self._started, info)
            case NotStarted(error):
                resolve(self._started, error)
                self._die(f"the engine could not be restarted: {error}")
            case Died(reason):
                self._die(reason)
            case Exited(reason):
                if reason:
                    resolve(self._started, BackendUnavailableError(reason))
                    self._die(reason)
                self._restart_later()

    def _free_adapter(self, in_engine: str | None) -> None:
        if in_engine is not None and not self._unavailable:  # gone with the engine otherwise
            unloaded = self._calls.call(Engine.unload_adapter, in_engine)
            unloaded.add_done_callback(partial(_failed, "an adapter could not be unloaded"))

    def _restore_adapters(self, loaded: Sequence[str]) -> None:
        """Reload the previous engine's adapters into a rebuilt one."""
        for name in self._adapters.surplus(loaded):
            self._free_adapter(name)
        for name, loras in self._adapters.missing(loaded).items():
            answer = self._calls.call(Engine.load_adapter, name, loras)
            answer.add_done_callback(partial(self._restored, name))

    def _restored(self, name: str, answer: asyncio.Future[None]) -> None:
        if _failed("an adapter could not be reloaded", answer):
            self._adapters.forget(name)

    def _deliver(self, outputs: list[Output]) -> None:
        is_ahead = self._executor.is_ahead
        several = _repeated([request_id for request_id, _ in outputs])
        for request_id, item in outputs:
            if stream := self._streams.get(request_id):
                stream.put(item, more=is_ahead or request_id in several)

    def _die(self, reason: str) -> None:
        if self._closed or not self._info:
            return
        self._restarting = reason
        message = f"the engine is restarting, try again soon; {reason}"
        self._fail(reason, BackendUnavailableError(message))

    def _fail(self, reason: str, unavailable: ServingError) -> None:
        self._unavailable = unavailable
        dead = type(unavailable) if isinstance(unavailable, EngineDeadError) else EngineDeadError
        for stream in self._streams.values():
            stream.put(dead(reason))
        self._calls.fail(partial(dead, reason))

    def _restart_later(self) -> None:
        if self._closed or not self._info:
            return
        ran = self._loop.time() - self._started_at if self._started_at is not None else None
        self._started_at = None
        self._failures = (
            1 if ran is not None and ran >= self._backoff.settled else self._failures + 1
        )
        delay = self._backoff.delay(self._failures)
        logger.error("%s; restarting it in %g s", self._restarting, delay)
        self._waiting = self._loop.call_later(delay, self._executor.start, self._receive)


def _repeated(ids: list[str]) -> Collection[str]:
    """Those that are there more than once."""
    if len(set(ids)) == len(ids):
        return ()
    return {id for id, times in Counter(ids).items() if times > 1}


def _failed(what: str, answer: asyncio.Future[None]) -> bool:
    """Whether the engine refused a call that nobody awaits; the error is logged."""
    error = answer.exception()
    if error is None or isinstance(error, EngineDeadError | BackendUnavailableError):
        return False
    logger.error("%s: %s", what, error)
    return True
