"""Two servers that stream the same events: Enginebay without a model, and a bare ASGI app.

Both run on uvicorn with the settings of `enginebay serve`. The engine has nothing to compute: each
of its steps gives every stream one ready-made token.
"""

import asyncio
import json
import queue
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Literal

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from enginebay.config.schema import Config
from enginebay.contract.engine import Engine
from enginebay.contract.errors import ServingError
from enginebay.contract.types import Delta, GenerationRequest, ModelInfo, TokenLogprob, TopLogprob
from enginebay.engine.backend import EngineBackend
from enginebay.plugins import Plugins
from enginebay.server.app import create_app
from enginebay.server.http.asgi import DIRECT_BODY, DirectBody
from enginebay.server.http.protocol import limited_protocol
from enginebay.server.http.sockets import listen
from enginebay.server.http.sse import DONE
from enginebay.server.http.uvicorn_server import Server
from enginebay.testing.scripted import CHAT_TEMPLATE

PIECE = " token"
"""The text of every token."""

CANDIDATES = (PIECE, " word", " piece", " letter", " sign")
TICK = 0.02
"""Seconds from one token of a stream to the next, where an engine is not in a hurry."""

Pace = Literal["in step", "free", "ticking"]

_STALLED = 30.0
_TOP = tuple(TopLogprob(i, text, -0.25 - i) for i, text in enumerate(CANDIDATES))
_LOGPROBS = (TokenLogprob(0, PIECE, -0.25, _TOP),)


class Gate:
    """Holds the engine's next step until every stream has sent what the last one gave it.

    Without it the engine runs ahead of the event loop, and tokens that pile up are sent together.
    """

    def __init__(self) -> None:
        self._missing = 0
        self._all_sent: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._all_sent.put(None)

    def enter(self, tokens: int) -> None:
        """Wait for the last step's events, then expect as many as this step has tokens."""
        self._all_sent.get(timeout=_STALLED)
        self._missing = tokens

    def sent(self) -> None:
        """Count an event; on the event loop."""
        self._missing -= 1
        if not self._missing:
            self._all_sent.put(None)


class Ticker:
    """Holds the engine's next step until it is due, at a multiple of `TICK` by `time.monotonic`.

    None is left out, however late the ones before were.
    """

    def __init__(self) -> None:
        self._due = 0.0

    def begin(self) -> None:
        """The next step is the first."""
        self._due = time.monotonic() // TICK * TICK

    def enter(self, tokens: int) -> None:
        """Wait until the next step is due, of however many tokens."""
        self._due += TICK
        time.sleep(max(0.0, self._due - time.monotonic()))


class CountedBody:
    """A body written directly, of which the gate is told."""

    def __init__(self, body: DirectBody, gate: Gate) -> None:
        self.ready = body.ready
        self._write = body.write
        self._gate = gate

    def write(self, body: bytes) -> None:
        """Write an event."""
        self._write(body)
        if body != DONE:
            self._gate.sent()


class GateKeeper:
    """ASGI middleware that tells the gate of each event."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self._app = app
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counted(message: Message) -> None:
            await send(message)
            if message.get("more_body") and message["body"] != DONE:
                self._gate.sent()

        if direct := scope.get("extensions", {}).get(DIRECT_BODY):
            scope["extensions"][DIRECT_BODY] = CountedBody(direct, self._gate)
        await self._app(scope, receive, counted)


@dataclass(slots=True)
class _Stream:
    request_id: str
    left: int
    logprobs: bool


class Talker(Engine):
    """Gives each request one token a step, `max_tokens` of them.

    A request's `seed` says with how many others it begins, so that all streams run all the time.
    """

    info = ModelInfo(
        context_length=10**9, vocab_size=1000, longest_token=1, chat_template=CHAT_TEMPLATE
    )

    def __init__(self, gate: Gate | Ticker | None) -> None:
        self._gate = gate
        self._waiting: list[_Stream] = []
        self._streams: list[_Stream] = []

    def add_request(self, request: GenerationRequest) -> None:
        sampling = request.sampling
        assert request.n == 1
        assert sampling.max_tokens
        logprobs = sampling.logprobs is not None
        self._waiting.append(_Stream(request.request_id, sampling.max_tokens, logprobs))
        if len(self._waiting) >= (sampling.seed or 1):
            if isinstance(self._gate, Ticker) and not self._streams:
                self._gate.begin()
            self._streams += self._waiting
            self._waiting.clear()

    def step(self) -> Iterable[tuple[str, Delta | ServingError]]:
        if not self._streams:
            time.sleep(0.001)
            return
        if self._gate:
            self._gate.enter(len(self._streams))
        for stream in self._streams:
            stream.left -= 1
            yield stream.request_id, _DELTAS[stream.logprobs, not stream.left]
        self._streams = [stream for stream in self._streams if stream.left]

    def abort_request(self, request_id: str) -> None:
        self._waiting = [s for s in self._waiting if s.request_id != request_id]
        self._streams = [s for s in self._streams if s.request_id != request_id]

    def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return list(range(8))

    def detokenize(self, token_ids: Sequence[int]) -> str:
        return PIECE * len(token_ids)


def _delta(*, logprobs: bool, last: bool) -> Delta:
    return Delta(
        text=PIECE,
        token_ids=(0,),
        logprobs=_LOGPROBS if logprobs else None,
        finish_reason="length" if last else None,
    )


_DELTAS = {
    (logprobs, last): _delta(logprobs=logprobs, last=last)
    for logprobs in (False, True)
    for last in (False, True)
}


def serve_enginebay(ready: Connection, *, pace: Pace) -> None:
    """Run the real app; its port goes to `ready` once its models are loaded.

    `talker` only talks; what `thinker` says is searched for thought, and calls of functions.
    """
    gate = Gate() if pace == "in step" else None
    plugins = Plugins()
    plugins.backends(
        "talker",
        lambda settings: EngineBackend(lambda: Talker(Ticker() if pace == "ticking" else gate)),
    )
    talker = {"name": "talker", "backend": "talker", "path": "."}
    thinker = {**talker, "name": "thinker", "reasoning": "think", "tools": "hermes"}
    app = create_app(Config.model_validate({"models": [talker, thinker]}), plugins)
    if gate:
        app.add_middleware(GateKeeper, gate=gate)
    listening = listen("127.0.0.1", 0)

    async def started() -> None:
        await app.state.services.models.wait_until_loaded()
        ready.send(listening.getsockname()[1])

    Server(app, "warning", started).run([listening])


@dataclass(slots=True)
class _Ticking:
    send: Send
    message: Message
    left: int
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Bare:
    """Sends the `event` of a request's body `tokens` times, each in a turn of the event loop, or
    one each tick.

    The body's `streams` says with how many others it begins, `ticking` that it ticks.
    """

    def __init__(self) -> None:
        self._waiting: list[asyncio.Event] = []
        self._ticking: list[_Ticking] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = json.loads(await _body(receive))
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._wait_for_others(asked["streams"])
        message = {
            "type": "http.response.body",
            "body": asked["event"].encode(),
            "more_body": True,
        }
        if asked["ticking"]:
            await self._tick(_Ticking(send, message, asked["tokens"]))
        else:
            for _ in range(asked["tokens"]):
                await send(message)
                await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": DONE, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _tick(self, stream: "_Ticking") -> None:
        self._ticking.append(stream)
        if len(self._ticking) == 1:
            args = asyncio.get_running_loop(), Ticker()
            threading.Thread(target=self._run_ticker, args=args, daemon=True).start()
        await stream.ended.wait()

    def _run_ticker(self, loop: asyncio.AbstractEventLoop, ticker: Ticker) -> None:
        """As an engine on its thread; a clock of the event loop would tick by the millisecond."""
        ticker.begin()
        while self._ticking:
            ticker.enter(len(self._ticking))
            asyncio.run_coroutine_threadsafe(self._send_all(), loop).result()

    async def _send_all(self) -> None:
        for stream in self._ticking:
            await stream.send(stream.message)
            stream.left -= 1
            if not stream.left:
                stream.ended.set()
        self._ticking = [stream for stream in self._ticking if stream.left]

    async def _wait_for_others(self, streams: int) -> None:
        everyone = asyncio.Event()
        self._waiting.append(everyone)
        if len(self._waiting) == streams:
            for event in self._waiting:
                event.set()
            self._waiting.clear()
        await everyone.wait()


async def _body(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body


def serve_bare(ready: Connection) -> None:
    """Run the bare app; its port goes to `ready`."""
    listening = listen("127.0.0.1", 0)
    ready.send(listening.getsockname()[1])
    config = uvicorn.Config(
        Bare(),
        http=limited_protocol(60.0),
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
    )
    uvicorn.Server(config).run([listening])
