"""The event loop's side of an engine: streams, calls, and starting it again when it died."""

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from core.contract.backend import Backend
from core.contract.engine import Engine
from core.contract.errors import (
    BackendUnavailableError,
    EngineDeadError,
    InvalidRequestError,
    ModelUnloadedError,
    ServingError,
)
from core.contract.grammar import Grammar
from core.contract.types import Delta, EngineStats, GenerationRequest, Isolation, Lora, ModelInfo
from core.engine.adapters import Adapters
from core.engine.backoff import Backoff
from core.engine.home import Home
from core.engine.messages import (
    Abort,
    Answer,
    Call,
    Compile,
    Detokenize,
    Died,
    Embed,
    Event,
    Gone,
    LoadAdapter,
    NotStarted,
    Output,
    Ping,
    Report,
    Rerank,
    Started,
    Tokenize,
    TokenizePair,
    UnloadAdapter,
)
from core.engine.process import ProcessHome
from core.engine.streams import DeltaStream
from core.engine.thread import ThreadHome

logger = logging.getLogger(__name__)

GRACE = 10.0


class EngineBackend(Backend):
    """Runs an `Engine` on a thread of its own, or in a process of its own.

    `create_engine` is called there by `start()`; for a process it must be picklable: a
    module-level function, or a `functools.partial` of one. A `report_progress` in its
    `BackendSettings` works there, too.

    When the engine dies, what is in flight fails with `EngineDeadError`, and another engine is
    built after a while that `backoff` gives; until then requests get `BackendUnavailableError`.
    Only an engine that could be built once is built again. `close()` kills a process that has not
    ended after `grace` seconds.
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
        self._home: Home = (
            ProcessHome(create_engine, grace)
            if isolation == "process"
            else ThreadHome(create_engine)
        )
        self._backoff = backoff or Backoff()
        self._streams: dict[str, DeltaStream] = {}
        self._in_use: set[str] = set()
        self._aborted: deque[str] = deque(maxlen=1000)  # nothing of older ones is on its way
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._adapters = Adapters()
        self._numbers = itertools.count()
        self._unavailable: ServingError | None = EngineDeadError("the model is not loaded")
        self._restarting: str | None = None
        self._waiting: asyncio.TimerHandle | None = None
        self._closed = False
        self._info: ModelInfo | None = None
        self._started_at: float | None = None
        self._failures = 0
        self._stats: EngineStats | None = None

    # Everything happens on the event loop, so that a request can never slip in between the
    # engine's death and the news of it.

    @property
    def pid(self) -> int | None:
        return self._home.pid

    @property
    def unavailable(self) -> str | None:
        return f"restarting: {self._restarting}" if self._restarting else None

    @property
    def stats(self) -> EngineStats | None:
        return self._stats

    async def ping(self) -> None:
        await self._call(Ping(next(self._numbers)))

    async def start(self) -> ModelInfo:
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[ModelInfo] = self._loop.create_future()
        self._home.begin(self._receive)
        return await self._started

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        self._require_engine()
        if request.request_id in self._in_use:
            raise InvalidRequestError(f"request id {request.request_id!r} is already in use")
        # What an engine has said to a request that was aborted may still be on its way, and must
        # not be taken for the answer to the next request with the same id.
        id = request.request_id
        if id in self._aborted:
            id = f"{id}/{next(self._numbers)}"
        adapter = self._adapters.enter(request.adapter)
        self._in_use.add(request.request_id)
        unfinished = 0
        try:
            compiled = await self._compile(request.sampling.constraint)
            stream = self._streams[id] = DeltaStream()
            self._home.send(replace(request, request_id=id, adapter=adapter))
            unfinished = request.n
            while unfinished:
                for item in await stream.take():
                    if isinstance(item, ServingError):
                        unfinished = 0
                        raise item
                    if item.finish_reason:
                        unfinished -= 1
                    if compiled:
                        item, compiled = replace(item, grammar_init_s=compiled), 0.0
                    yield item
        finally:
            self._streams.pop(id, None)
            self._in_use.remove(request.request_id)
            if unfinished:
                self._aborted.append(request.request_id)
                self._home.send(Abort(id))
            self._free_adapter(self._adapters.leave(adapter))

    async def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        tokens: list[int] = await self._call(
            Tokenize(next(self._numbers), text, add_special_tokens)
        )
        return tokens

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        text: str = await self._call(Detokenize(next(self._numbers), tuple(token_ids)))
        return text

    async def tokenize_plain(self, text: str, *, add_special_tokens: bool) -> list[int]:
        tokens: list[int] = await self._call(
            Tokenize(next(self._numbers), text, add_special_tokens, plain=True)
        )
        return tokens

    async def detokenize_plain(self, token_ids: Sequence[int]) -> str:
        text: str = await self._call(Detokenize(next(self._numbers), tuple(token_ids), plain=True))
        return text

    async def embed(self, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
        embeddings: list[list[float]] = await self._call(
            Embed(next(self._numbers), tuple(map(tuple, prompts)))
        )
        return embeddings

    async def tokenize_pair(self, query: str, document: str) -> list[int]:
        tokens: list[int] = await self._call(TokenizePair(next(self._numbers), query, document))
        return tokens

    async def rerank(self, pairs: Sequence[Sequence[int]]) -> list[float]:
        scores: list[float] = await self._call(
            Rerank(next(self._numbers), tuple(map(tuple, pairs)))
        )
        return scores

    async def load_adapter(self, name: str, loras: Sequence[Lora]) -> None:
        in_engine = self._adapters.new_name(name)
        load = LoadAdapter(next(self._numbers), in_engine, tuple(loras))
        try:
            await self._call(load)
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
        await self._home.end()

    def _require_engine(self) -> None:
        if self._unavailable:
            raise type(self._unavailable)(self._unavailable.message)

    async def _compile(self, grammar: Grammar | None) -> float:
        """Seconds until the engine had a constraint ready, in its own process but on no step."""
        if grammar is None:
            return 0.0
        seconds: float = await self._call(Compile(next(self._numbers), grammar))
        return seconds

    async def _call(self, call: Call) -> Any:
        self._require_engine()
        answer = self._calls[call.number] = self._loop.create_future()
        try:
            self._home.send(call)
            return await answer
        finally:
            del self._calls[call.number]

    def _receive(self, event: Event) -> None:
        match event:
            case list():
                self._deliver(event)
            case Report(stats):
                self._stats = stats
            case Answer(number, result):
                _resolve(self._calls.get(number), result)
            case Started(info):
                self._started_at = self._loop.time()
                self._stats = EngineStats()
                if not self._closed:
                    self._unavailable = self._restarting = None
                if self._info:
                    self._restore_adapters(info.adapters)
                    logger.info("the engine runs again")
                else:
                    self._adapters.configure(info.adapters)
                self._info = info
                _resolve(self._started, info)
            case NotStarted(error):
                _resolve(self._started, error)
                self._die(f"the engine could not be started again: {error}")
            case Died(reason):
                self._die(reason)
            case Gone(reason):
                if reason:
                    _resolve(self._started, BackendUnavailableError(reason))
                    self._die(reason)
                self._restart_later()

    def _free_adapter(self, in_engine: str | None) -> None:
        if in_engine is not None:
            self._home.send(UnloadAdapter(in_engine))

    def _restore_adapters(self, loaded: Sequence[str]) -> None:
        """Let an engine that was built anew have what the one before it had."""
        for name in self._adapters.surplus(loaded):
            self._free_adapter(name)
        for name, loras in self._adapters.missing(loaded).items():
            load = LoadAdapter(next(self._numbers), name, loras)
            answer = self._calls[load.number] = self._loop.create_future()
            answer.add_done_callback(partial(self._restored, load))
            self._home.send(load)

    def _restored(self, load: LoadAdapter, answer: asyncio.Future[None]) -> None:
        del self._calls[load.number]
        error = answer.exception()
        if error is not None and not isinstance(error, EngineDeadError | BackendUnavailableError):
            logger.error("an adapter could not be loaded again: %s", error)
            self._adapters.forget(load.name)

    def _deliver(self, outputs: list[Output]) -> None:
        for request_id, item in outputs:
            if stream := self._streams.get(request_id):
                stream.put(item)

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
        for answer in self._calls.values():
            _resolve(answer, dead(reason))

    def _restart_later(self) -> None:
        if self._closed or not self._info:
            return
        ran = self._loop.time() - self._started_at if self._started_at is not None else None
        self._started_at = None
        self._failures = (
            1 if ran is not None and ran >= self._backoff.settled else self._failures + 1
        )
        delay = self._backoff.delay(self._failures)
        logger.error("%s; starting it again in %g s", self._restarting, delay)
        self._waiting = self._loop.call_later(delay, self._home.begin, self._receive)


def _resolve(future: asyncio.Future[Any] | None, result: object) -> None:
    if future is None or future.done():
        return
    if isinstance(result, BaseException):
        future.set_exception(result)
    else:
        future.set_result(result)
