"""The contract of a blocking engine, and the thread that drives it.

Every serious engine has the same shape: add a request, step the batch, abort. `EngineBackend` owns
the one thread on which all of that happens and makes an asynchronous backend of it. A whole step
crosses to the event loop in one call, because a crossing per token costs more than the token.
"""

import asyncio
import logging
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from core.backend import Backend
from core.errors import EngineDeadError, InvalidRequestError, ServingError
from core.types import Delta, GenerationRequest, ModelInfo

logger = logging.getLogger(__name__)


class Engine(ABC):
    """A blocking engine: built, stepped and closed on one thread.

    Only `tokenize` and `detokenize` are called from other threads, while a step may be running.
    """

    info: ModelInfo

    @abstractmethod
    def add_request(self, request: GenerationRequest) -> None:
        """Queue a request. A `ServingError` raised here fails this request alone."""

    @abstractmethod
    def step(self) -> Iterable[tuple[str, Delta | ServingError]]:
        """Run the batch once; `(request_id, delta)` for every choice that gained something.

        Called again and again while a request is unfinished. A `ServingError` in a delta's place
        ends that request alone, all its choices. An exception means that the engine is dead:
        everything in flight fails.
        """

    @abstractmethod
    def abort_request(self, request_id: str) -> None:
        """Forget a request and free its memory. An unknown id is no error."""

    @abstractmethod
    def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """As `Backend.tokenize`; from any thread."""

    @abstractmethod
    def detokenize(self, token_ids: Sequence[int]) -> str:
        """As `Backend.detokenize`; from any thread."""

    def close(self) -> None:  # noqa: B027  (most engines have nothing to free)
        """Free everything; called once, last, on the engine thread."""


@dataclass(frozen=True, slots=True)
class _Abort:
    request_id: str


class _Close:
    pass


_Command = GenerationRequest | _Abort | _Close
_Output = tuple[str, Delta | ServingError]


class _DeltaStream:
    """What one request has been given and not yet taken; lives on the event loop."""

    def __init__(self) -> None:
        self._items: list[Delta | ServingError] = []
        self._available = asyncio.Event()

    def put(self, item: Delta | ServingError) -> None:
        self._items.append(item)
        self._available.set()

    async def take(self) -> list[Delta | ServingError]:
        await self._available.wait()
        self._available.clear()
        items, self._items = self._items, []
        return items


def _join(first: Delta, second: Delta) -> Delta:
    return replace(
        second,
        text=first.text + second.text,
        token_ids=first.token_ids + second.token_ids,
        prefill_tokens=first.prefill_tokens + second.prefill_tokens,
        cached_tokens=first.cached_tokens + second.cached_tokens,
    )


def _merge(items: Iterable[Delta | ServingError]) -> Iterable[Delta | ServingError]:
    """Join what piled up for one choice while the client was slow into one delta.

    Deltas with logprobs stay apart: clients read one token an event there.
    """
    held: dict[int, Delta] = {}
    for item in items:
        if isinstance(item, ServingError):
            yield from held.values()
            held.clear()
            yield item
        elif item.logprobs is not None:
            yield item
        else:
            previous = held.get(item.index)
            held[item.index] = _join(previous, item) if previous else item
    yield from held.values()


class EngineBackend(Backend):
    """Runs an `Engine` on a thread of its own.

    `create_engine` is called on that thread by `start()`.
    """

    def __init__(self, create_engine: Callable[[], Engine]) -> None:
        self._create_engine = create_engine
        self._commands: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._streams: dict[str, _DeltaStream] = {}
        self._error: EngineDeadError | None = None
        self._engine: Engine | None = None
        self._thread: threading.Thread | None = None

    # On the event loop. `_streams` and `_error` are touched nowhere else, so that a request can
    # never slip in between the engine's death and the news of it.

    async def start(self) -> ModelInfo:
        self._loop = asyncio.get_running_loop()
        started: asyncio.Future[Engine] = self._loop.create_future()
        self._thread = threading.Thread(
            target=self._run, args=(started,), name="enginebay-engine", daemon=True
        )
        self._thread.start()
        self._engine = await started
        return self._engine.info

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        if self._error:
            raise EngineDeadError(self._error.message)
        if request.request_id in self._streams:
            raise InvalidRequestError(f"request id {request.request_id!r} is already in use")
        stream = self._streams[request.request_id] = _DeltaStream()
        self._commands.put(request)
        unfinished = request.n
        try:
            while unfinished:
                for item in _merge(await stream.take()):
                    if isinstance(item, ServingError):
                        unfinished = 0
                        raise item
                    if item.finish_reason:
                        unfinished -= 1
                    yield item
        finally:
            del self._streams[request.request_id]
            if unfinished:
                self._commands.put(_Abort(request.request_id))

    async def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        engine = self._loaded()
        return await asyncio.to_thread(engine.tokenize, text, add_special_tokens=add_special_tokens)

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        return await asyncio.to_thread(self._loaded().detokenize, token_ids)

    async def close(self) -> None:
        self._fail(EngineDeadError("the model was unloaded"))
        self._commands.put(_Close())
        if self._thread:
            await asyncio.to_thread(self._thread.join)
        self._engine = None

    def _loaded(self) -> Engine:
        if self._engine is None:
            raise EngineDeadError("the model is not loaded")
        return self._engine

    def _deliver(self, outputs: list[_Output]) -> None:
        for request_id, item in outputs:
            if stream := self._streams.get(request_id):
                stream.put(item)

    def _fail(self, error: EngineDeadError) -> None:
        self._error = self._error or error
        for stream in self._streams.values():
            stream.put(EngineDeadError(self._error.message))

    # On the engine thread.

    def _run(self, started: asyncio.Future[Engine]) -> None:
        try:
            engine = self._create_engine()
        except BaseException as error:
            self._loop.call_soon_threadsafe(_set_exception, started, error)
            return
        self._loop.call_soon_threadsafe(_set_result, started, engine)
        try:
            self._serve(engine)
        except BaseException as error:
            logger.exception("the engine died")
            dead = EngineDeadError(f"the engine died: {type(error).__name__}: {error}")
            self._loop.call_soon_threadsafe(self._fail, dead)
        finally:
            engine.close()

    def _serve(self, engine: Engine) -> None:
        unfinished: dict[str, int] = {}
        while True:
            outputs: list[_Output] = []
            for command in self._take_commands(wait=not unfinished):
                match command:
                    case _Close():
                        return
                    case _Abort(request_id):
                        if unfinished.pop(request_id, None) is not None:
                            engine.abort_request(request_id)
                    case GenerationRequest():
                        if error := _add(engine, command):
                            outputs.append((command.request_id, error))
                        else:
                            unfinished[command.request_id] = command.n
            if unfinished:
                outputs += self._step(engine, unfinished)
            if outputs:
                self._loop.call_soon_threadsafe(self._deliver, outputs)

    def _take_commands(self, *, wait: bool) -> Iterable[_Command]:
        try:
            yield self._commands.get(block=wait)
            while True:
                yield self._commands.get_nowait()
        except queue.Empty:
            return

    @staticmethod
    def _step(engine: Engine, unfinished: dict[str, int]) -> list[_Output]:
        outputs: list[_Output] = []
        for request_id, item in engine.step():
            if request_id not in unfinished:
                continue
            outputs.append((request_id, item))
            if isinstance(item, ServingError):
                unfinished[request_id] = 0
            elif item.finish_reason:
                unfinished[request_id] -= 1
            if not unfinished[request_id]:
                del unfinished[request_id]
        return outputs


def _add(engine: Engine, request: GenerationRequest) -> ServingError | None:
    try:
        engine.add_request(request)
    except ServingError as error:
        return error
    except Exception as error:
        logger.exception("request %s could not be added", request.request_id)
        engine.abort_request(request.request_id)
        return ServingError(f"the engine refused the request: {type(error).__name__}: {error}")
    return None


def _set_result(future: asyncio.Future[Engine], engine: Engine) -> None:
    if not future.done():
        future.set_result(engine)


def _set_exception(future: asyncio.Future[Engine], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
