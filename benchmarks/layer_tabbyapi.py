"""TabbyAPI's own app with an engine that has nothing to compute, as `layer.py` has it.

    .peers/tabbyapi/bin/python benchmarks/layer_tabbyapi.py .peers/tabbyapi-e632af4 --port 8000

Only its model container is replaced: by one that gives each stream a token every 20 ms, in the form
in which the real one hands tokens on. Everything from the request to the events is TabbyAPI's. No
keys are asked for, and its log is at `warning`, as Enginebay's. This file stands alone: it runs in
TabbyAPI's environment.
"""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

TICK = 0.02
PIECE = " token"
PROMPT_TOKENS = 64


class TickingContainer:
    """In place of `ExllamaV3Container`: what `/v1/completions` uses of it."""

    loaded = True
    model_dir = Path("models/bench")

    def __init__(self) -> None:
        self._streams: dict[str, asyncio.Queue[int]] = {}
        self._ticking: asyncio.Task[None] | None = None

    def validate_context_length(self, *_: Any) -> None:
        """All prompts fit."""

    async def unload(self, **_: Any) -> None:
        """There is nothing to unload."""

    async def stream_generate(
        self, request_id: str, _prompt: str, params: Any, disconnect: Any, *_: Any
    ) -> AsyncIterator[dict[str, Any]]:
        """`max_tokens` tokens, each a chunk of its own, and a last chunk without text."""
        arrived: asyncio.Queue[int] = asyncio.Queue()
        self._streams[request_id] = arrived
        if self._ticking is None or self._ticking.done():
            self._ticking = asyncio.create_task(self._tick())
        try:
            for number in range(1, params.max_tokens + 1):
                token = await arrived.get()
                await disconnect.poll()
                yield {
                    "request_id": request_id,
                    "text": PIECE,
                    "token_ids": [token],
                    "prompt_tokens": PROMPT_TOKENS,
                    "generated_tokens": number,
                    "offset": len(PIECE) * number,
                }
        finally:
            del self._streams[request_id]
        yield {"request_id": request_id, "finish_reason": "length"}

    async def _tick(self) -> None:
        due = 0.0
        while self._streams:
            due = max(due + TICK, time.monotonic())
            await asyncio.sleep(due - time.monotonic())
            for arrived in self._streams.values():
                arrived.put_nowait(0)


async def serve(port: int) -> None:
    """Run TabbyAPI's server, as its main program does, without its command line."""
    from common import auth, model  # type: ignore[import-not-found]
    from common.tabby_config import config  # type: ignore[import-not-found]
    from endpoints.server import start_api  # type: ignore[import-not-found]

    config.load({})
    auth.DISABLE_AUTH = True
    model.container = TickingContainer()
    await start_api("127.0.0.1", port)


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, help="folder of TabbyAPI's source")
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    os.environ["TABBY_LOG_LEVEL"] = "WARNING"
    source = options.source.resolve()
    os.chdir(source)
    sys.path[0] = str(source)

    import uvloop  # type: ignore[import-not-found]
    from common.logger import setup_logger  # type: ignore[import-not-found]

    setup_logger()
    uvloop.run(serve(options.port))


if __name__ == "__main__":
    main()
