"""The loop that drives an engine, on whatever thread of whatever process it is run."""

import logging
import queue
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from core.contract.engine import Engine
from core.contract.errors import ServingError
from core.contract.types import EngineStats, GenerationRequest, Lora
from core.engine.messages import (
    Abort,
    Answer,
    Close,
    Command,
    Compile,
    Detokenize,
    Died,
    Embed,
    Event,
    LoadAdapter,
    NotStarted,
    Output,
    Ping,
    Report,
    Rerank,
    Started,
    Tokenize,
    TokenizePair,
    TokenizerCall,
    UnloadAdapter,
)

logger = logging.getLogger(__name__)

TOKENIZER_THREADS = 4

REPORT_INTERVAL = 0.5
"""Seconds between two reports of an engine's stats while there is work."""

EngineCommand = (
    GenerationRequest | Abort | Embed | Rerank | LoadAdapter | UnloadAdapter | Ping | Close
)

_Prompts = tuple[tuple[int, ...], ...]
_Computed = TypeVar("_Computed")


class Host:
    """One engine from its building to its closing.

    `emit` is called with one list a step, because a crossing per token costs more than the token;
    it is called from several threads. `clock` is for the reports of the engine's stats.
    """

    def __init__(
        self,
        create_engine: Callable[[], Engine],
        emit: Callable[[Event], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._create_engine = create_engine
        self._emit = emit
        self._clock = clock
        self._steps = 0
        self._next_report = 0.0
        self._commands: queue.SimpleQueue[EngineCommand] = queue.SimpleQueue()
        self._engine: Engine | None = None
        self._tokenizers = ThreadPoolExecutor(TOKENIZER_THREADS, "enginebay-tokenizer")

    def send(self, command: Command) -> None:
        """Give the engine something to do; from any thread, never blocks."""
        if isinstance(command, TokenizerCall):
            with suppress(RuntimeError):  # no answer after the engine's death
                self._tokenizers.submit(self._answer, command)
        else:
            self._commands.put(command)

    def run(self) -> None:
        """Build the engine and drive it on this thread until `Close`, or until it dies."""
        try:
            engine = self._engine = self._create_engine()
        except BaseException as error:
            self._emit(NotStarted(error))
            return
        self._emit(Started(engine.info))
        try:
            self._serve(engine)
        except BaseException as error:
            logger.exception("the engine died")
            self._emit(Died(f"the engine died: {type(error).__name__}: {error}"))
        self._tokenizers.shutdown()
        try:
            engine.close()
        except BaseException:
            logger.exception("the engine could not be closed")
        self._engine = None

    def _serve(self, engine: Engine) -> None:
        unfinished: dict[str, list[bool]] = {}  # which choices of a request go on
        while True:
            outputs: list[Output] = []
            worked = bool(unfinished)
            for command in self._take_commands(wait=not unfinished):
                match command:
                    case Close():
                        return
                    case Abort(request_id):
                        if unfinished.pop(request_id, None) is not None:
                            engine.abort_request(request_id)
                    case GenerationRequest():
                        if error := _add(engine, command):
                            outputs.append((command.request_id, error))
                        else:
                            unfinished[command.request_id] = [True] * command.n
                    case Embed(number, prompts):
                        self._emit(Answer(number, _computed("embed", engine.embed, prompts)))
                    case Rerank(number, pairs):
                        self._emit(Answer(number, _computed("rerank", engine.rerank, pairs)))
                    case LoadAdapter(number, name, loras):
                        self._emit(Answer(number, _load_adapter(engine, name, loras)))
                    case UnloadAdapter(name):
                        _unload_adapter(engine, name)
                    case Ping(number):
                        self._emit(Answer(number, None))
            if unfinished:
                worked = True
                outputs += _step(engine, unfinished)
                self._steps += 1
            if outputs:
                self._emit(outputs)
            if worked and (not unfinished or self._clock() >= self._next_report):
                self._report(engine)

    def _report(self, engine: Engine) -> None:
        self._next_report = self._clock() + REPORT_INTERVAL
        try:
            stats = engine.stats() or EngineStats()
        except Exception:  # no reason to lose a model
            logger.exception("the engine's stats could not be read")
            stats = EngineStats()
        self._emit(Report(replace(stats, steps=self._steps)))

    def _take_commands(self, *, wait: bool) -> Iterable[EngineCommand]:
        try:
            yield self._commands.get(block=wait)
            while True:
                yield self._commands.get_nowait()
        except queue.Empty:
            return

    def _answer(self, call: TokenizerCall) -> None:
        assert self._engine is not None
        result: list[int] | str | float | BaseException
        try:
            match call:
                case Tokenize(_, text, add, plain):
                    tokenize = self._engine.tokenize_plain if plain else self._engine.tokenize
                    result = tokenize(text, add_special_tokens=add)
                case Detokenize(_, token_ids, plain):
                    engine = self._engine
                    detokenize = engine.detokenize_plain if plain else engine.detokenize
                    result = detokenize(token_ids)
                case TokenizePair(_, query, document):
                    result = self._engine.tokenize_pair(query, document)
                case Compile(_, grammar):
                    result = self._engine.compile(grammar)
        except BaseException as error:
            result = error
        self._emit(Answer(call.number, result))


def _step(engine: Engine, unfinished: dict[str, list[bool]]) -> list[Output]:
    """What the engine says to requests that wait for it; behind a finish nothing is heard."""
    outputs: list[Output] = []
    for request_id, item in engine.step():
        goes_on = unfinished.get(request_id)
        if goes_on is None:
            continue
        if isinstance(item, ServingError):
            del unfinished[request_id]
        elif 0 <= item.index < len(goes_on):  # else whoever reads it raises
            if not goes_on[item.index]:
                continue
            goes_on[item.index] = item.finish_reason is None
            if not any(goes_on):
                del unfinished[request_id]
        outputs.append((request_id, item))
    return outputs


def _add(engine: Engine, request: GenerationRequest) -> ServingError | None:
    try:
        engine.add_request(request)
    except ServingError as error:
        return error
    except Exception as error:
        id = request.request_id
        logger.exception("request %s could not be added", id, extra={"request_id": id})
        engine.abort_request(request.request_id)
        return ServingError(f"the engine refused the request: {type(error).__name__}: {error}")
    return None


def _computed(
    name: str, compute: Callable[[_Prompts], _Computed], prompts: _Prompts
) -> _Computed | ServingError:
    try:
        return compute(prompts)
    except ServingError as error:
        return error
    except Exception as error:
        logger.exception("the engine could not %s %d prompts", name, len(prompts))
        return ServingError(f"the engine failed to {name}: {type(error).__name__}: {error}")


def _load_adapter(engine: Engine, name: str, loras: tuple[Lora, ...]) -> ServingError | None:
    try:
        engine.load_adapter(name, loras)
    except ServingError as error:
        return error
    except Exception as error:
        logger.exception("the adapter %s could not be loaded", name)
        return ServingError(f"the engine failed to load it: {type(error).__name__}: {error}")
    return None


def _unload_adapter(engine: Engine, name: str) -> None:
    try:
        engine.unload_adapter(name)
    except Exception:
        logger.exception("the adapter %s could not be unloaded", name)
