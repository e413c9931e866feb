"""Does the memory of a server grow? Many requests of random lengths, some of them aborted.

    python3 start.py python benchmarks/soak.py --peer enginebay-hf --requests 2000

Prints what the server's processes have in RAM before the first request, ten times on the way and at
the end. Caches that are meant to fill do so in the first tenth; what grows after that is a leak.
"""

import argparse
import asyncio
import random
import time
from contextlib import aclosing
from pathlib import Path

from benchmarks import models, report
from benchmarks.load import Answer, follow
from benchmarks.peer_commands import PEERS
from benchmarks.prompts import Prompts
from benchmarks.servers import Server, Settings, running

CONTEXT = 1024
LONGEST_PROMPT = 700
LONGEST_ANSWER = 200
ABORTED = 0.25


async def request(server: Server, prompts: Prompts, generator: random.Random) -> bool:
    """One request; whether it was aborted."""
    length = generator.randint(1, LONGEST_PROMPT)
    tokens = generator.randint(1, LONGEST_ANSWER)
    [prompt] = prompts.make(1, length, str(generator.random()))
    abort_after = generator.randrange(tokens) if generator.random() < ABORTED else None
    seen = Answer(time.perf_counter())
    async with aclosing(follow(server, prompt, tokens, seen)) as pieces:
        async for answer in pieces:
            if abort_after is not None and len(answer.arrivals) > abort_after:
                return True
    return False


async def soak(server: Server, prompts: Prompts, requests: int, streams: int) -> report.Json:
    """Send the requests, `streams` at a time; megabytes in RAM, and how many were aborted."""
    generator = random.Random(1)
    every = max(requests // 10, 1)
    megabytes = [resident_megabytes(server, 0)]
    sent = done = aborted = 0

    async def stream() -> None:
        nonlocal sent, done, aborted
        while sent < requests:
            sent += 1
            was_aborted = await request(server, prompts, generator)
            aborted += was_aborted
            done += 1
            if done % every == 0:
                megabytes.append(resident_megabytes(server, done))

    async with asyncio.TaskGroup() as group:
        for _ in range(streams):
            group.create_task(stream())
    return {
        "requests": done,
        "aborted": aborted,
        "megabytes": megabytes,
        "growth_after_first_tenth": megabytes[-1] - megabytes[1],
    }


def resident_megabytes(server: Server, done: int) -> int:
    """What the server has in RAM now; says so."""
    megabytes = round(server.resident_bytes() / 1e6)
    print(f"{done:6} requests {megabytes:6} MB", flush=True)
    return megabytes


async def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", default="enginebay-hf", choices=PEERS)
    parser.add_argument("--model", default="demo", help="demo, 100m or a folder")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--streams", type=int, default=16, help="requests at a time")
    parser.add_argument("--threads", type=int, default=report.usable_cores())
    parser.add_argument("--output", type=Path, help="JSON file to write")
    args = parser.parse_args()
    peer = PEERS[args.peer]
    model = models.find(args.model, "bfloat16" if report.has_bfloat16() else "float32")
    if peer.engine == "llamacpp":
        models.ensure_gguf(model)
    settings = Settings(model, args.threads, args.streams, CONTEXT)
    with running(peer, settings) as server:
        seen = await soak(server, Prompts(model.folder), args.requests, args.streams)
    results = {**report.machine(), "model": model.name, "peer": peer.name, **seen}
    results["versions"] = peer.versions()
    print(f"{seen['aborted']} of {seen['requests']} aborted; after the first tenth:", end=" ")
    print(f"{seen['growth_after_first_tenth']:+} MB")
    if args.output:
        report.write(results, args.output)
        print(f"Written to {args.output}")


if __name__ == "__main__":
    asyncio.run(main())
