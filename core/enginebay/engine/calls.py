"""Pending calls to an engine's methods, on the event loop."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from enginebay.contract.engine import Engine, Later
from enginebay.engine.messages import Answer, Call, Cancel, Ping

_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")


class Calls:
    """Sends calls and resolves them when answers arrive."""

    def __init__(self, send: Callable[[Call | Cancel | Ping], None]) -> None:
        self._send = send
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    def __len__(self) -> int:
        """How many have no answer yet."""
        return len(self._waiting)

    def call(
        self,
        method: Callable[Concatenate[Engine, _Args], Later[_Result]],
        *args: _Args.args,
        **kwargs: _Args.kwargs,
    ) -> asyncio.Future[_Result]:
        """Call the engine's method of the same name; cancelled there when it is cancelled here."""
        call = Call(next(self._numbers), method.__name__, args, kwargs)
        answer = self._await(call)
        answer.add_done_callback(lambda _: answer.cancelled() and self._send(Cancel(call.number)))
        return answer

    def ping(self) -> asyncio.Future[None]:
        """Wait until the engine is between two steps."""
        return self._await(Ping(next(self._numbers)))

    def answer(self, answer: Answer) -> None:
        """Resolve the call, if it is still awaited."""
        if waiting := self._waiting.get(answer.number):
            resolve(waiting, answer.result)

    def fail(self, make_error: Callable[[], BaseException]) -> None:
        """Fail all of them, each with its own error."""
        for waiting in self._waiting.values():
            resolve(waiting, make_error())

    def _await(self, command: Call | Ping) -> asyncio.Future[Any]:
        waiting = asyncio.get_running_loop().create_future()
        self._waiting[command.number] = waiting
        waiting.add_done_callback(lambda _: self._waiting.pop(command.number))
        self._send(command)
        return waiting


def resolve(future: asyncio.Future[Any], result: object) -> None:
    """Set a future's result or exception, unless it is already done."""
    if future.done():
        return
    if isinstance(result, BaseException):
        future.set_exception(result)
    else:
        future.set_result(result)
