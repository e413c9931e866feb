"""The requests in progress and the resources held for each."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from copy import copy
from types import TracebackType
from typing import Any, Literal, TypeVar
from uuid import uuid4

from enginebay.chat.answer.account import Account
from enginebay.chat.answer.usage import UsageCounter
from enginebay.config.keys import Key
from enginebay.contract.errors import RequestCancelledError
from enginebay.models.admission_queue import Place
from enginebay.models.served import ServedModel

T = TypeVar("T")

RequestState = Literal["received", "loading", "queued", "running"]


class RunningRequest:
    """One request, until its response has been sent or its client has left.

    `id`: a UUID until the route knows the client's; `answer_id`: that of its answer.
    `route`: method and path, or who else asks. `key`: the API key it came with, None where it needs
    none. `is_admin`: whether it may do what only admins may, see `permissions`. `shares_prefixes`:
    whether other keys use what is cached for it. `asks`: whether it uses a model; `model`: that
    model's name. `loading`: it waits until that is loaded. `received`: by `time.monotonic`.
    `choices` are all of the answer, `counter` has its tokens. `account`: where what it uses is
    counted. `ended`: why its answer has ended. `free`: it is answered even if its key has reached a
    limit of tokens, as long as it uses none. `end_reasoning` ends the thought of what is generated
    for it; None before that. `cancelled`: why it was, if it was. `keep_alive`: seconds that it
    wants its model to stay loaded without requests.
    """

    def __init__(self, route: str = "") -> None:
        self.id = uuid4().hex
        self.answer_id: str | None = None
        self.route = route
        self.key: Key | None = None
        self.is_admin = False
        self.shares_prefixes = False
        self.asks = False
        self.model: str | None = None
        self.received = time.monotonic()
        self.stream = False
        self.keep_alive: float | None = None
        self.choices = 0
        self.counter: UsageCounter | None = None
        self.ended = ""
        self.account = Account()
        self.free = False
        self.end_reasoning: Callable[[], Awaitable[int]] | None = None
        self.loading = False
        self.cancelled: RequestCancelledError | None = None
        self._held = AsyncExitStack()
        self._places: list[Place] = []
        self._started = False
        self._counted: set[str] = set()
        self._interruptible: set[Interruptible] = set()

    async def hold(self, context: AbstractAsyncContextManager[T]) -> T:
        """Enter `context` now, and leave it when the response has ended."""
        return await self._held.enter_async_context(context)

    async def release(self) -> None:
        """Exit the held contexts in reverse order."""
        await self._held.aclose()

    def expect_answer(self, id: str, *, stream: bool) -> None:
        """It is going to be answered by an object with this id."""
        self.answer_id = id
        self.stream = stream

    @property
    def shown_id(self) -> str:
        """The id by which others know it: its answer's, if it has one."""
        return self.answer_id or self.id

    @property
    def key_name(self) -> str | None:
        """The name of its API key."""
        return self.key.name if self.key else None

    @property
    def most_tokens(self) -> int | None:
        """The most tokens per answer that its key allows; None: unlimited."""
        return self.key.max_tokens if self.key else None

    def priority(self, asked: int = 0) -> int:
        """The effective priority: its key's, else the requested one."""
        if self.key is None or self.key.priority is None:
            return asked
        return self.key.priority

    def cache_salt(self, asked: str | None) -> str | None:
        """The effective cache salt: its key's together with the requested one."""
        if self.key is None or self.shares_prefixes:
            return asked
        return self.key.cache_salt(asked)

    @property
    def state(self) -> RequestState:
        """`running` since an engine began with it, or with the first of its prompts."""
        if self._started:
            return "running"
        if self._places:
            return "queued"
        return "loading" if self.loading else "received"

    @property
    def position(self) -> int | None:
        """The number of requests ahead of it, if it is queued."""
        return self._places[0].position if self.state == "queued" else None

    def require_tokens(self) -> None:
        """Raise `TokenLimitError` if its key has reached a limit of tokens."""
        if self.key:
            self.account.require_tokens(self.key)

    @asynccontextmanager
    async def turn(
        self, model: ServedModel, choices: int, *, prompt_tokens: int, priority: int = 0
    ) -> AsyncIterator[None]:
        """Wait for admission to the model's engine; the block does the work.

        That is when a request and these tokens of its prompts count as used, and when its key is
        asked for the last time whether it may use any.
        """
        place = model.gate.join(
            choices,
            model=model.config.name,
            key=self.key_name,
            priority=priority,
            goes_on=self._started or bool(self._places),
        )
        self._places.append(place)
        try:
            with self.interruptible():
                await place.admitted
            if not self._started:
                self.require_tokens()
            self._started = True
            self._count(model.config.name, prompt_tokens)
            yield
        finally:
            place.leave()
            self._places.remove(place)

    def _count(self, model: str, prompt_tokens: int) -> None:
        used = self.account.of(model)
        used.prompt_tokens += prompt_tokens
        if model not in self._counted:
            self._counted.add(model)
            used.requests += 1

    def interruptible(self) -> "Interruptible":
        """A block that `cancel` ends where it waits."""
        return Interruptible(self)

    def cancel(self, error: RequestCancelledError | None = None) -> None:
        """Cancel it: whatever waits gets `error`; an answer that has begun ends as it is.

        Calling it again has no effect.
        """
        if self.cancelled:
            return
        self.cancelled = error or RequestCancelledError("the request was cancelled")
        for block in self._interruptible:
            block.interrupt()


class Interruptible:
    """A block in which a request can be cancelled: entering it, or where it awaits, it raises
    `RequestCancelledError` then.

    An async generator makes `waits` false before it yields, as its reader may await something
    else, and calls `resume` afterwards. Another task may read on when the one before has ended.
    """

    __slots__ = ("_interrupted", "_request", "_task", "waits")

    def __init__(self, request: RunningRequest) -> None:
        self._request = request
        self._interrupted = False
        self.waits = True

    def __enter__(self) -> "Interruptible":
        self._task = _current_task()
        self.resume()
        self._request._interruptible.add(self)
        return self

    def resume(self) -> None:
        """Go on, unless the request has been cancelled meanwhile. Called once a token."""
        if self._request.cancelled:
            raise copy(self._request.cancelled)
        if self._task.done():  # `current_task` itself takes as long as the rest of a token
            self._task = _current_task()
        self.waits = True

    def interrupt(self) -> None:
        """Raise at its current await."""
        if self.waits:
            self._interrupted = True
            self._task.cancel()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._request._interruptible.remove(self)
        if not self._interrupted:
            return
        # Somebody else may have cancelled the task as well, and then has to get that.
        wanted = self._task.uncancel() > 0
        if kind is asyncio.CancelledError and not wanted:
            assert self._request.cancelled
            raise copy(self._request.cancelled) from None


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


class RunningRequests:
    """All of them, the oldest first."""

    def __init__(self) -> None:
        self._requests: dict[int, RunningRequest] = {}

    def __iter__(self) -> Iterator[RunningRequest]:
        return iter(list(self._requests.values()))

    def __len__(self) -> int:
        return len(self._requests)

    @asynccontextmanager
    async def track(self, request: RunningRequest) -> AsyncIterator[None]:
        """It is in progress while the block runs; what is held for it is released then."""
        self._requests[id(request)] = request
        try:
            yield
        finally:
            del self._requests[id(request)]
            await request.release()

    def cancel(self, error: RequestCancelledError, *, waiting_only: bool = False) -> None:
        """Cancel all of them, or only those that no engine has started."""
        for request in self:
            if not (waiting_only and request.state == "running"):
                request.cancel(error)
