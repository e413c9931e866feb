"""What a client feels in moments that averages hide: a prompt sent again, a long prompt among
running streams, chats that grow by a turn, answers that keep to a JSON schema.

Each is a function that returns a row of its own type. They run with a server of their own, with
room for a few long sequences.
"""

import asyncio
import statistics
import time
from contextlib import aclosing
from typing import TypedDict

from benchmarks.load import Answer, answer, burst, follow
from benchmarks.prompts import Prompts
from benchmarks.servers import Server, Settings

NAMES = ("repeated_prompt", "long_prompt", "conversations", "constrained")
STREAMS = 4
_TOKENS_BEFORE = 8
"""Tokens that each stream has got when the long prompt is sent."""

_TOKENS_AT_MOST = 1024
_START_TIMEOUT = 120.0

TURNS = 5
SYSTEM_TOKENS, QUESTION_TOKENS, ANSWER_TOKENS = 400, 40, 32
"""Of the system prompt that all chats share, and of each turn."""

CONSTRAINED_TOKENS = 128
RECORDS = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "first_name": {"type": "string", "maxLength": 20},
            "last_name": {"type": "string", "maxLength": 20},
            "department": {"enum": ["sales", "support", "research"]},
            "remote": {"type": "boolean"},
        },
        "required": ["first_name", "last_name", "department", "remote"],
        "additionalProperties": False,
    },
    "minItems": 20,
}
"""More than an answer has room for, so that all have the same length."""


class RepeatedPrompt(TypedDict):
    """TTFT the first time and the second."""

    first_ms: float
    again_ms: float
    ratio: float


class LongPrompt(TypedDict):
    """Gaps of the running streams before and during the long prompt, and its TTFT.

    `running` counts the streams that were still making tokens when its first token came.
    """

    prompt_tokens: int
    running: int
    median_gap_before_ms: float
    worst_gap_ms: float
    long_prompt_ttft_ms: float


class Conversations(TypedDict):
    """Of so many chats at a time; lists have a value for each turn, the median of the chats.

    `cached_tokens` is empty where the server does not say; `tokens_per_second` counts answers only.
    """

    chats: int
    ttft_ms: list[float]
    cached_tokens: list[float]
    tokens_per_second: float
    exact: bool


class Constrained(TypedDict):
    """Tokens/s of answers that keep to a JSON schema, and of others to prompts as long."""

    streams: int
    free: float
    constrained: float
    ratio: float
    exact: bool


def settings(base: Settings) -> Settings:
    """What the servers of the scenarios are started with."""
    context = min(base.model.context_length, 4096 + 256)
    return Settings(base.model, base.threads, STREAMS + 1, context)


async def repeated_prompt(server: Server, prompts: Prompts, seed: str) -> RepeatedPrompt:
    """TTFT of an 800-token prompt the first time and the second, median of three prompts."""
    first: list[float] = []
    second: list[float] = []
    for prompt in prompts.make(3, 800, f"repeated {seed}"):
        for ttft in (first, second):
            ttft.append((await answer(server, prompt, 4)).ttft)
    before, after = (statistics.median(ttft) * 1e3 for ttft in (first, second))
    return {"first_ms": round(before, 1), "again_ms": round(after, 1), "ratio": after / before}


async def long_prompt(server: Server, prompts: Prompts, seed: str, context: int) -> LongPrompt:
    """The worst gap between tokens of four running streams while a long prompt is prefilled.

    The prompt has 4,000 tokens, or what the context has room for.
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


async def conversations(server: Server, prompts: Prompts, seed: str, chats: int) -> Conversations:
    """Chats that share a new system prompt; every turn sends all that has been said.

    All chats begin at once, each goes on when it has its answer.
    """
    [system] = prompts.make(1, SYSTEM_TOKENS, f"system {seed} {chats}")
    turns: list[list[Answer]] = [[] for _ in range(TURNS)]

    async def chat(number: int) -> None:
        said = [{"role": "system", "content": system}]
        questions = prompts.make(TURNS, QUESTION_TOKENS, f"chat {seed} {chats} {number}")
        for turn, question in zip(turns, questions, strict=True):
            said.append({"role": "user", "content": question})
            turn.append(await answer(server, said, ANSWER_TOKENS))
            said.append({"role": "assistant", "content": turn[-1].text})

    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(chats):
            group.create_task(chat(number))
    answers = [answer for turn in turns for answer in turn]
    seconds = max(answer.arrivals[-1] for answer in answers) - start
    cached = [[a.cached_tokens for a in turn if a.cached_tokens is not None] for turn in turns]
    return {
        "chats": chats,
        "ttft_ms": [round(statistics.median(a.ttft for a in turn) * 1e3, 1) for turn in turns],
        "cached_tokens": [statistics.median(counts) for counts in cached if counts],
        "tokens_per_second": round(sum(answer.tokens for answer in answers) / seconds, 1),
        "exact": all(answer.exact for answer in answers),
    }


async def constrained(server: Server, prompts: Prompts, seed: str, streams: int) -> Constrained:
    """The speed of answers that keep to a JSON schema beside that of others, as long, in chats."""

    async def speed(way: Server, name: str) -> tuple[float, bool]:
        texts = prompts.make(streams, 64, f"{name} {seed} {streams}")
        chats = [[{"role": "user", "content": text}] for text in texts]
        seen = await burst(way, streams, chats, CONSTRAINED_TOKENS)
        return round(seen.tokens_per_second, 1), seen.exact

    free, free_exact = await speed(server, "free")
    kept, kept_exact = await speed(server.constrained(RECORDS), "constrained")
    return {
        "streams": streams,
        "free": free,
        "constrained": kept,
        "ratio": round(kept / free, 3),
        "exact": free_exact and kept_exact,
    }


def _gaps_after(answer: Answer, start: float) -> list[float]:
    """The gaps that ended after `start`."""
    return [gap for gap, end in zip(answer.gaps, answer.arrivals[1:], strict=True) if end > start]
