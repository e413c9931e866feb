"""The loop that drives an engine, on a thread of the server or in its own process."""

import logging
import queue
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from enginebay.contract.engine import CONCURRENT_METHODS, Engine
from enginebay.contract.errors import ServingError
from enginebay.contract.media import Media
from enginebay.contract.types import EngineStats, GenerationRequest
from enginebay.engine.messages import (
    Abort,
    Answer,
    Call,
    Cancel,
    Close,
    Command,
    Died,
    Event,
    NotStarted,
    Output,
    Ping,
    Report,
    Started,
)

logger = logging.getLogger(__name__)

TOKENIZER_THREADS = 4
LONG_THREADS = 2
"""For prompts with media and long texts, which take seconds, so that others need not wait."""

LONG = 1 << 17
"""Characters of a text that is long."""

REPORT_INTERVAL = 0.5
"""Seconds between two reports of an engine's stats while there is work."""


class EngineLoop:
    """Drives one engine from its creation to its close.

    `emit` is called from several threads, with one list per step: an event per token would cost
    more than the token. `clock` times the reports of the engine's stats.
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
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._engine: Engine | None = None
        self._tokenizers = ThreadPoolExecutor(TOKENIZER_THREADS, "enginebay-tokenizer")
        self._long = ThreadPoolExecutor(LONG_THREADS, "enginebay-long")
        self._concurrent: dict[int, Future[None]] = {}

    def send(self, command: Command) -> None:
        """Queue a command; from any thread, never blocks."""
        if isinstance(command, Call) and command.method in CONCURRENT_METHODS:
            threads = self._long if _takes_long(command) else self._tokenizers
            with suppress(RuntimeError):  # no answer after the engine's death
                future = threads.submit(self._answer_now, command)
                self._concurrent[command.number] = future
                future.add_done_callback(lambda _: self._concurrent.pop(command.number))
        elif isinstance(command, Cancel) and (queued := self._concurrent.get(command.number)):
            queued.cancel()
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
        self._long.shutdown(cancel_futures=True)
        self._tokenizers.shutdown()
        try:
            engine.close()
        except BaseException:
            logger.exception("the engine could not be closed")
        self._engine = None

    def _serve(self, engine: Engine) -> None:
        unfinished: dict[str, list[bool]] = {}  # for each choice of a request
        computing: dict[int, tuple[Call, Future[Any]]] = {}
        while True:
            outputs: list[Output] = []
            worked = bool(unfinished or computing)
            for command in self._take_commands(wait=not worked):
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
                    case Call(number):
                        if future := self._answer(command, Exception):
                            computing[number] = command, future
                    case Cancel(number) if number in computing:
                        computing.pop(number)[1].cancel()
                    case Ping(number):
                        self._emit(Answer(number, None))
            if unfinished or computing:
                worked = True
                outputs += _step(engine, unfinished)
                self._steps += 1
            done = [pair for pair in computing.values() if pair[1].done()]
            for call, _ in done:
                del computing[call.number]
            busy = unfinished or computing
            if worked and (not busy or self._clock() >= self._next_report):
                self._report(engine)  # first: who has an answer finds it counted
            if outputs:
                self._emit(outputs)
            for call, future in done:
                self._emit(Answer(call.number, _result(call, Exception, future.result)))

    def _report(self, engine: Engine) -> None:
        self._next_report = self._clock() + REPORT_INTERVAL
        try:
            stats = engine.stats() or EngineStats()
        except Exception:  # not worth losing the model for
            logger.exception("the engine's stats could not be read")
            stats = EngineStats()
        self._emit(Report(replace(stats, steps=self._steps)))

    def _take_commands(self, *, wait: bool) -> Iterable[Command]:
        try:
            yield self._commands.get(block=wait)
            while True:
                yield self._commands.get_nowait()
        except queue.Empty:
            return

    def _answer_now(self, call: Call) -> None:
        self._answer(call, BaseException)

    def _answer(self, call: Call, caught: type[BaseException]) -> Future[Any] | None:
        """Make a call, and answer it unless steps have to compute its result."""
        method = partial(getattr(self._engine, call.method), *call.args, **call.kwargs)
        result = _result(call, caught, method)
        if isinstance(result, Future):
            return result
        self._emit(Answer(call.number, result))
        return None


def _takes_long(call: Call) -> bool:
    if call.method == Engine.tokenize_media.__name__:
        return any(isinstance(piece, Media) for piece in call.args[0])
    text = call.args[0]
    return isinstance(text, str) and len(text) > LONG


def _step(engine: Engine, unfinished: dict[str, list[bool]]) -> list[Output]:
    """The output of one step, without deltas of choices that have already finished."""
    outputs: list[Output] = []
    for request_id, item in engine.step():
        choices = unfinished.get(request_id)
        if choices is None:
            continue
        if isinstance(item, ServingError):
            del unfinished[request_id]
        elif 0 <= item.index < len(choices):  # else its reader raises
            if not choices[item.index]:
                continue
            choices[item.index] = item.finish_reason is None
            if not any(choices):
                del unfinished[request_id]
        outputs.append((request_id, item))
    return outputs


def _result(call: Call, caught: type[BaseException], compute: Callable[[], Any]) -> Any:
    """What `compute` returns, or the error that fails the call alone: its own or one `caught`."""
    try:
        return compute()
    except ServingError as error:
        return error
    except caught as error:
        failure = f"the engine failed to {call.method.replace('_', ' ')}"
        logger.exception(failure)
        return ServingError(f"{failure}: {type(error).__name__}: {error}")


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
