"""Servers whose engine has nothing to compute, so that all their time is the layer's.

    python -m benchmarks.layer enginebay --port 8000
    python -m benchmarks.layer bare --port 8000

Each stream gets one token every 20 ms, all at once, as an engine that batches gives them.
`layer_tabbyapi.py` is the third. `bare` is an ASGI app on the same uvicorn, which sends the bytes
of such events ready-made: no server on it can do less.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Iterable, Sequence

import uvicorn
from starlette.types import Receive, Scope, Send

from enginebay.config.schema import Config
from enginebay.contract.engine import Engine
from enginebay.contract.errors import ServingError
from enginebay.contract.types import Delta, GenerationRequest, ModelInfo
from enginebay.engine.backend import EngineBackend
from enginebay.plugins import Plugins
from enginebay.server.app import create_app
from enginebay.server.http.sockets import listen
from enginebay.server.http.uvicorn_server import Server

TICK = 0.02
"""Seconds from one token of a stream to the next."""

PIECE = " token"


class TickingEngine(Engine):
    """Gives each request `max_tokens` tokens, one each tick."""

    info = ModelInfo(context_length=10**9, vocab_size=1000, longest_token=1)

    def __init__(self) -> None:
        self._left: dict[str, int] = {}
        self._due = 0.0

    def add_request(self, request: GenerationRequest) -> None:
        assert request.sampling.max_tokens
        self._left[request.request_id] = request.sampling.max_tokens

    def step(self) -> Iterable[tuple[str, Delta | ServingError]]:
        self._due = max(self._due + TICK, time.monotonic())
        time.sleep(max(self._due - time.monotonic(), 0.0))
        for request_id in list(self._left):
            self._left[request_id] -= 1
            last = not self._left[request_id]
            if last:
                del self._left[request_id]
            reason = "length" if last else None
            yield request_id, Delta(text=PIECE, token_ids=(0,), finish_reason=reason)

    def abort_request(self, request_id: str) -> None:
        self._left.pop(request_id, None)

    def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [0] * 64

    def detokenize(self, token_ids: Sequence[int]) -> str:
        return PIECE * len(token_ids)


def serve_enginebay(port: int) -> None:
    """Run the real app with that engine, as `enginebay serve` does."""
    plugins = Plugins()
    plugins.backends("ticking", lambda settings: EngineBackend(TickingEngine))
    models = [{"name": "bench", "backend": "ticking", "path": "."}]
    app = create_app(Config.model_validate({"models": models}), plugins)
    Server(app, "warning", app.state.services.models.wait_until_loaded).run(
        [listen("127.0.0.1", port)]
    )


def _event(finish_reason: str | None) -> bytes:
    choice = {"index": 0, "text": PIECE, "logprobs": None, "finish_reason": finish_reason}
    chunk = {"id": f"cmpl-{'0' * 32}", "object": "text_completion", "created": 1_800_000_000}
    content = json.dumps({**chunk, "model": "bench", "choices": [choice]}, separators=(",", ":"))
    return f"data: {content}\n\n".encode()


class Bare:
    """Answers every POST with a stream of ready-made events, `max_tokens` of them."""

    def __init__(self) -> None:
        self._left: dict[Send, int] = {}
        self._ended: dict[Send, asyncio.Event] = {}
        self._ticking: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        if scope["method"] == "GET":  # is it healthy?
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        self._left[send] = json.loads(body)["max_tokens"]
        self._ended[send] = asyncio.Event()
        if self._ticking is None or self._ticking.done():
            self._ticking = asyncio.create_task(self._tick())
        await self._ended[send].wait()
        del self._ended[send]
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    async def _tick(self) -> None:
        token = {"type": "http.response.body", "body": _event(None), "more_body": True}
        last = {**token, "body": _event("length")}
        due = 0.0
        while self._left:
            due = max(due + TICK, time.monotonic())
            await asyncio.sleep(due - time.monotonic())
            for send in list(self._left):
                self._left[send] -= 1
                await send(token if self._left[send] else last)
                if not self._left[send]:
                    del self._left[send]
                    self._ended[send].set()


def serve_bare(port: int) -> None:
    """Run the bare app on uvicorn."""
    config = uvicorn.Config(
        Bare(), log_config=None, log_level="warning", access_log=False, lifespan="off"
    )
    uvicorn.Server(config).run([listen("127.0.0.1", port)])


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server", choices=["enginebay", "bare"])
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    serve = serve_bare if options.server == "bare" else serve_enginebay
    serve(options.port)


if __name__ == "__main__":
    main()
