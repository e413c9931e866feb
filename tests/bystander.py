"""Somebody else's stream, whose evenly paced tokens a test makes itself."""

import asyncio
import json
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from enginebay import Delta, GenerationRequest, ModelInfo
from enginebay.config.schema import Config
from enginebay.plugins import Plugins
from enginebay.server.access.key_store import KeyStore
from tests.held import OfCharacters
from tests.support import Server, serve

NAME = "bystander"
PATIENCE = 30
"""Seconds after which a token counts as lost. A stream that works needs milliseconds."""


class _Paced(OfCharacters):
    """Make one token for each `allow`."""

    async def start(self) -> ModelInfo:
        self._allowed: asyncio.Queue[bool] = asyncio.Queue()
        return ModelInfo(context_length=4096, vocab_size=0x110000, longest_token=1)

    def allow(self, more: bool) -> None:
        """Make one more token, or end; on the event loop."""
        self._allowed.put_nowait(more)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        prefilled = len(request.prompt_token_ids)
        while await self._allowed.get():
            yield Delta(index=0, text="a", token_ids=(97,), prefill_tokens=prefilled)
            prefilled = 0
        yield Delta(index=0, finish_reason="stop")


class Bystander:
    """A client that reads its stream while a test does something else to the server."""

    def __init__(self, server: Server, paced: _Paced) -> None:
        self.server = server
        self._paced = paced
        self._arrived: queue.Queue[str] = queue.Queue()

    def advance(self, tokens: int = 1) -> None:
        """Make tokens one by one, and return when the client has read the last one.

        A token that does not arrive is an `AssertionError`: something holds up the event loop, or
        the stream has ended.
        """
        for made in range(tokens):
            self.server.loop.call_soon_threadsafe(self._paced.allow, True)
            try:
                text = self._arrived.get(timeout=PATIENCE)
            except queue.Empty:
                raise AssertionError(f"token {made} of somebody else's stream is late") from None
            assert text == "a", f"somebody else's stream ended with {text!r}"

    @contextmanager
    def measured(self) -> Iterator["Turns"]:
        """Measure how long the event loop computes in one turn, in which no stream gets a token."""
        turns = Turns()
        self.server.loop.call_soon_threadsafe(turns.begin, self.server.loop)
        try:
            yield turns
        finally:
            turns.end()
            self.server.run(asyncio.sleep(0))

    def read(self, headers: dict[str, str]) -> None:
        """Read the stream to its end, on a thread of its own."""
        body = {"model": NAME, "prompt": "x", "stream": True}
        with self.server.http.stream(
            "POST", "/v1/completions", json=body, headers=headers, timeout=10 * PATIENCE
        ) as response:
            if response.status_code != 200:
                self._arrived.put(response.read().decode())
                return
            for line in response.iter_lines():
                if line == "data: [DONE]":
                    self._arrived.put(line)
                elif line.startswith("data: "):
                    event = json.loads(line.removeprefix("data: "))
                    self._arrived.put(event["choices"][0]["text"] if "choices" in event else line)


class Turns:
    """The turns of an event loop: `longest` is the CPU time of the longest one, in seconds.

    CPU time of the loop's own thread does not depend on what else the machine runs.
    """

    longest = 0.0

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Measure each turn from now on, on the event loop."""
        self._ended = False
        self._loop = loop
        self._before = time.thread_time()
        loop.call_soon(self._turn)

    def end(self) -> None:
        """Measure no more, from any thread."""
        self._ended = True

    def _turn(self) -> None:
        now = time.thread_time()
        self.longest = max(self.longest, now - self._before)
        self._before = now
        if not self._ended:
            self._loop.call_soon(self._turn)


@contextmanager
def bystander(
    config: Config,
    plugins: Plugins,
    *,
    keys: KeyStore | None = None,
    key: str | None = None,
    **settings: Any,
) -> Iterator[Bystander]:
    """A server with these models, and somebody who reads a stream of another model, with `key`."""
    paced = _Paced()
    plugins.backends(NAME, lambda _: paced)
    entry = {"name": NAME, "backend": NAME, "path": "."}
    added = Config.model_validate({"models": [entry]}).models
    config = config.model_copy(update={"models": [*config.models, *added]})
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with serve(config, plugins, keys=keys, **settings) as server:
        watching = Bystander(server, paced)
        reader = threading.Thread(target=watching.read, args=(headers,))
        reader.start()
        try:
            watching.advance()
            yield watching
        finally:
            server.loop.call_soon_threadsafe(paced.allow, False)
            reader.join()


class Pause:
    """A function that waits until the test lets it go on."""

    def __init__(self) -> None:
        self._entered = threading.Event()
        self._free = threading.Event()

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Make a function that waits, and then does the same."""

        def waits(*args: Any, **kwargs: Any) -> Any:
            self._entered.set()
            self._free.wait(10 * PATIENCE)
            return function(*args, **kwargs)

        return waits

    def entered(self) -> None:
        """Return when the function has been called."""
        assert self._entered.wait(PATIENCE), "nothing has called the function"

    def go_on(self) -> None:
        """Let all calls go on, those that come later, too."""
        self._free.set()


@contextmanager
def paused(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> Iterator[Pause]:
    """Make the function `owner.name` wait until `go_on`, or until the block ends.

    Other streams go on meanwhile if the function does not run on the event loop.
    """
    pause = Pause()
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, pause.around(getattr(owner, name)))
        try:
            yield pause
        finally:
            pause.go_on()
