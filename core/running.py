"""The HTTP requests that are being answered, and what is held for each until it has been."""

import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, TypeVar
from uuid import uuid4

T = TypeVar("T")

_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_App = Callable[[_Scope, _Receive, _Send], Awaitable[None]]


class RunningRequest:
    """One request, until its response has been sent or its client has left.

    `id`: a UUID until the route knows the client's. `model`: the name of the model that answers,
    once that is known. `received`: by `time.monotonic`.
    """

    def __init__(self) -> None:
        self.id = uuid4().hex
        self.model: str | None = None
        self.received = time.monotonic()
        self._held = AsyncExitStack()

    async def hold(self, context: AbstractAsyncContextManager[T]) -> T:
        """Enter `context` now, and leave it when the response has ended."""
        return await self._held.enter_async_context(context)

    async def release(self) -> None:
        """Leave what is held, the last one first."""
        await self._held.aclose()


class RunningRequests:
    """All of them, the oldest first."""

    def __init__(self) -> None:
        self._requests: dict[int, RunningRequest] = {}

    def __iter__(self) -> Iterator[RunningRequest]:
        return iter(list(self._requests.values()))

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: RunningRequest) -> None:
        """It has arrived."""
        self._requests[id(request)] = request

    def remove(self, request: RunningRequest) -> None:
        """It has been answered."""
        del self._requests[id(request)]


class TrackRequests:
    """ASGI middleware: each HTTP request is one of `requests`, and its `request.state.running`."""

    def __init__(self, app: _App, requests: RunningRequests) -> None:
        self._app = app
        self._requests = requests

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        """Pass the request on, and release what is held for it afterwards."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = RunningRequest()
        scope.setdefault("state", {})["running"] = request
        self._requests.add(request)
        try:
            await self._app(scope, receive, send)
        finally:
            self._requests.remove(request)
            await request.release()
