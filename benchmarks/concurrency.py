"""How much faster are requests together than one after the other?

    enginebay serve &
    python benchmarks/concurrency.py --url http://127.0.0.1:5000/v1 --requests 8

Both ways are measured in turn, several rounds in one run, and compared as a ratio, so that what
else the machine does concerns both alike.
"""

import argparse
import asyncio
import statistics
import time

from openai import AsyncOpenAI


async def completion_tokens(client: AsyncOpenAI, model: str, number: int, tokens: int) -> int:
    """Stream one answer of exactly `tokens` tokens; what the server says it was."""
    stream = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": f"Tell me a story about {number} trains."}],
        max_tokens=tokens,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    counted = 0
    async for chunk in stream:
        if chunk.usage:
            counted = chunk.usage.completion_tokens
    return counted


async def one_after_the_other(client: AsyncOpenAI, model: str, requests: int, tokens: int) -> int:
    return sum([await completion_tokens(client, model, i, tokens) for i in range(requests)])


async def together(client: AsyncOpenAI, model: str, requests: int, tokens: int) -> int:
    return sum(
        await asyncio.gather(
            *(completion_tokens(client, model, i, tokens) for i in range(requests))
        )
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:5000/v1")
    parser.add_argument("--api-key", default="none")
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    speeds: dict[str, list[float]] = {"one after the other": [], "together": []}
    async with AsyncOpenAI(base_url=options.url, api_key=options.api_key) as client:
        model = (await client.models.list()).data[0].id
        await completion_tokens(client, model, 0, options.tokens)
        for _ in range(options.rounds):
            for way, run in zip(speeds, (one_after_the_other, together), strict=True):
                start = time.perf_counter()
                tokens = await run(client, model, options.requests, options.tokens)
                speeds[way].append(tokens / (time.perf_counter() - start))
    for way, measured in speeds.items():
        print(f"{way:>20}: {statistics.median(measured):8.1f} tokens/s (median of {measured})")
    ratios = [b / a for a, b in zip(*speeds.values(), strict=True)]
    print(f"{'ratio':>20}: {statistics.median(ratios):8.2f} (rounds: {ratios})")


if __name__ == "__main__":
    asyncio.run(main())
