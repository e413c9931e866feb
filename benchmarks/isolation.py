"""What does an engine's process cost, and what does it spare the event loop?

    python benchmarks/isolation.py

An engine without a model runs on a thread and in a process in turn, several rounds in one run.
Tokens/s are first those of an engine that has nothing to compute, so all of it is the way to the
client's stream. Then every step computes in pure Python for 5 ms, as a scheduler does; the delay is
that of the event loop meanwhile: how late a timer of 1 ms is, its 99th percentile.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Iterable
from functools import partial

from enginebay import EngineBackend, GenerationRequest, ServingError
from enginebay.contract.backend_settings import Isolation
from enginebay.contract.sampling_params import SamplingParams
from enginebay.contract.types import Delta
from enginebay.testing import ScriptedEngine


class Busy(ScriptedEngine):
    """Says `a` for ever; each of its steps keeps Python busy for so many seconds."""

    def __init__(self, busy: float) -> None:
        super().__init__(lambda prompt, index: iter(lambda: "a", ""), context_length=10**9)
        self._busy = busy

    def step(self) -> Iterable[tuple[str, Delta | ServingError]]:
        end = time.perf_counter() + self._busy
        while time.perf_counter() < end:
            pass
        return super().step()


async def stream(backend: EngineBackend, number: int, tokens: int) -> int:
    sampling = SamplingParams(max_tokens=tokens)
    request = GenerationRequest(
        request_id=f"chatcmpl-{number:032x}", prompt_token_ids=(65,) * 100, sampling=sampling
    )
    return sum([len(delta.token_ids) async for delta in backend.generate(request)])


async def delays(found: list[float]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        start = loop.time()
        await asyncio.sleep(0.001)
        found.append(loop.time() - start - 0.001)


async def measure(
    isolation: Isolation, streams: int, tokens: int, busy: float
) -> tuple[float, float]:
    """Tokens/s of all streams together, 99th percentile of the delay in ms."""
    backend = EngineBackend(partial(Busy, busy), isolation=isolation)
    await backend.start()
    await stream(backend, 0, 100)
    found: list[float] = []
    watch = asyncio.create_task(delays(found))
    start = time.perf_counter()
    counted = await asyncio.gather(*(stream(backend, i, tokens) for i in range(streams)))
    seconds = time.perf_counter() - start
    watch.cancel()
    await backend.close()
    return sum(counted) / seconds, statistics.quantiles(found or [0, 0], n=100)[-1] * 1000


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    ways: tuple[Isolation, ...] = ("thread", "process")
    print(f"{'streams':>7} {'':>26} {'thread':>10} {'process':>10} {'ratio':>7}")
    for streams in (1, 16, 64):
        free = [[await measure(way, streams, 20_000 // streams + 500, 0.0) for way in ways]
                for _ in range(options.rounds)]  # fmt: skip
        busy = [[await measure(way, streams, 200, 0.005) for way in ways]
                for _ in range(options.rounds)]  # fmt: skip
        for title, rounds, column in (
            ("tokens/s", free, 0),
            ("tokens/s, 5 ms a step", busy, 0),
            ("delay p99 in ms, 5 ms", busy, 1),
        ):
            thread, process = (statistics.median(r[way][column] for r in rounds) for way in (0, 1))
            ratio = process / thread
            print(f"{streams:>7} {title:>26} {thread:>10.1f} {process:>10.1f} {ratio:>7.2f}")


if __name__ == "__main__":
    asyncio.run(main())
