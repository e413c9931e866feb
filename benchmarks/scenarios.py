"""What a client feels in two moments: a prompt sent again, and a long prompt among running streams.

Both run with a server of their own, with room for a few long sequences.
"""

import asyncio
import statistics
import time
from contextlib import aclosing
from typing import Any

from benchmarks.load import Answer, answer, follow
from benchmarks.prompts import Prompts
from benchmarks.servers import Server, Settings

STREAMS = 4
_TOKENS_BEFORE = 8
"""Tokens that each stream has got when the long prompt is sent."""

_TOKENS_AT_MOST = 1024
_START_TIMEOUT = 120.0


def settings(base: Settings) -> Settings:
    """What the servers of the scenarios are started with."""
    context = min(base.model.context_length, 4096 + 256)
    return Settings(base.model, base.threads, STREAMS + 1, context)


async def repeated_prompt(server: Server, prompts: Prompts, seed: str) -> dict[str, Any]:
    """TTFT of an 800-token prompt the first time and the second, median of three prompts."""
    first: list[float] = []
    second: list[float] = []
    for prompt in prompts.make(3, 800, f"repeated {seed}"):
        for ttft in (first, second):
            ttft.append((await answer(server, prompt, 4)).ttft)
    before, after = (statistics.median(ttft) * 1e3 for ttft in (first, second))
    return {"first_ms": round(before, 1), "again_ms": round(after, 1), "ratio": after / before}


async def long_prompt(server: Server, prompts: Prompts, seed: str, context: int) -> dict[str, Any]:
    """The worst gap between tokens of four running streams while a long prompt is prefilled.

    The prompt has 4,000 tokens, or what the context has room for. `running` counts the streams
    that were still making tokens when its first token came.
    """
    tokens = min(4000, context - 64)
    limit = min(_TOKENS_AT_MOST, context - 128)
    seen = [Answer(time.perf_counter()) for _ in range(STREAMS)]
    started = [asyncio.Event() for _ in seen]

    async def stream(number: int, prompt: str) -> None:
        try:
            async with aclosing(follow(server, prompt, limit, seen[number])) as pieces:
                async for answer in pieces:
                    if len(answer.arrivals) == _TOKENS_BEFORE:
                        started[number].set()
        finally:
            started[number].set()

    texts = prompts.make(STREAMS, 64, f"running {seed}")
    streams = [asyncio.create_task(stream(i, text)) for i, text in enumerate(texts)]
    async with asyncio.timeout(_START_TIMEOUT):
        for event in started:
            await event.wait()
    if any(len(answer.arrivals) < _TOKENS_BEFORE for answer in seen):
        await asyncio.gather(*streams)
        raise RuntimeError("a stream ended before the long prompt could be sent")
    [prompt] = prompts.make(1, tokens, f"long {seed}")
    newcomer = await answer(server, prompt, 4)
    running = sum(not stream.done() for stream in streams)
    for task in streams:
        task.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
    during = [gap for answer in seen for gap in _gaps_after(answer, newcomer.sent)]
    before = [gap for answer in seen for gap in answer.gaps[1:_TOKENS_BEFORE]]
    return {
        "prompt_tokens": tokens,
        "running": running,
        "median_gap_before_ms": round(statistics.median(before) * 1e3, 1),
        "worst_gap_ms": round(max(during, default=0) * 1e3, 1),
        "long_prompt_ttft_ms": round(newcomer.ttft * 1e3, 1),
    }


def _gaps_after(answer: Answer, start: float) -> list[float]:
    """The gaps that ended after `start`."""
    return [gap for gap, end in zip(answer.gaps, answer.arrivals[1:], strict=True) if end > start]
