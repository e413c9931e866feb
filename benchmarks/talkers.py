"""Two servers that stream the same events: Enginebay without a model, and a bare ASGI app.

Both run on uvicorn with the settings of `enginebay serve`. The engine has nothing to compute: each
of its steps gives every stream one ready-made token.
"""

import asyncio
import json
import queue
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from core.config.schema import Config
from core.contract.engine import Engine
from core.contract.errors import ServingError
from core.contract.types import Delta, GenerationRequest, ModelInfo, TokenLogprob, TopLogprob
from core.engine.backend import EngineBackend
from core.plugins import Plugins
from core.server.app import create_app
from core.server.http.asgi import DIRECT_BODY, DirectBody
from core.server.http.protocol import limited_protocol
from core.server.http.sockets import listen
from core.server.http.sse import DONE
from core.server.http.uvicorn_server import Server
from core.testing.scripted import CHAT_TEMPLATE

PIECE = " token"
"""The text of every token."""

CANDIDATES = (PIECE, " word", " piece", " letter", " sign")
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

    def __init__(self, gate: Gate | None) -> None:
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


def serve_enginebay(ready: Connection, *, gated: bool) -> None:
    """Run the real app; its port goes to `ready` once the model is loaded."""
    gate = Gate() if gated else None
    plugins = Plugins()
    plugins.backends("talker", lambda settings: EngineBackend(lambda: Talker(gate)))
    model = {"name": "talker", "backend": "talker", "path": "."}
    app = create_app(Config.model_validate({"models": [model]}), plugins)
    if gate:
        app.add_middleware(GateKeeper, gate=gate)
    listening = listen("127.0.0.1", 0)

    async def started() -> None:
        await app.state.services.models.wait_until_loaded()
        ready.send(listening.getsockname()[1])

    Server(app, "warning", started).run([listening])


class Bare:
    """Sends the `event` of a request's body `tokens` times, each in a turn of the event loop.

    The body's `streams` says with how many others it begins.
    """

    def __init__(self) -> None:
        self._waiting: list[asyncio.Event] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = json.loads(await _body(receive))
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._wait_for_others(asked["streams"])
        event = asked["event"].encode()
        for _ in range(asked["tokens"]):
            await send({"type": "http.response.body", "body": event, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": DONE, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

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
