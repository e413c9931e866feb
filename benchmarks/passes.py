"""What does a prompt's chunk add to a pass in which four streams decode?

    python benchmarks/passes.py

Passes of four decoding rows and k tokens of a prompt, k = 0 to 256, take turns in this process, on
one thread and by CPU time, so that other programs matter little (--threads 2 --wall: both cores, by
the time that passes). Then two rows for each k: what a prompt of 4,000 tokens costs its own client
and the streams, if all passes beside them are of that size.
"""

import argparse
import importlib.metadata
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import models, report
from enginebay import BackendSettings
from enginebay.engine.batching.runner import Chunk

RESULTS = Path(__file__).parent / "results" / "passes.json"
SIZES = (0, 8, 16, 32, 64, 128, 256)
STREAMS = 4
_PROMPT = 4000
_DEPTH = 1000
"""Tokens of the prompt before the chunk, and of each stream `_BEHIND`."""
_BEHIND = 200
_PACKAGES = {"hf": ("torch", "transformers"), "llamacpp": ("llama-cpp-python",)}


def runner(backend: str, model: models.Model, threads: int) -> Any:
    """The model with room for the streams and the prompt."""
    options = {"threads": threads, "max_batch_size": STREAMS + 1, "context_length": 4096}
    path = model.folder if backend == "hf" else model.gguf
    settings = BackendSettings(name="m", path=str(path), options=None)
    if backend == "hf":
        from enginebay_hf.loading import load_engine as load_hf
        from enginebay_hf.options import HFOptions

        chosen: Any = HFOptions(device="cpu", dtype="float32", **options)
        engine: Any = load_hf(replace(settings, options=chosen))
    else:
        from enginebay_llamacpp.loading import load_engine as load_llamacpp
        from enginebay_llamacpp.options import LlamaCppOptions

        models.ensure_gguf(model)
        chosen = LlamaCppOptions(**options)
        engine = load_llamacpp(replace(settings, options=chosen))
    return engine._runner


def token_ids(start: int, count: int) -> tuple[int, ...]:
    """Some of the model's words."""
    return tuple(300 + (place * 7919) % 2600 for place in range(start, start + count))


def fill(runner: Any) -> None:
    """Streams and the first part of the prompt."""
    for slot in range(STREAMS):
        runner.run([Chunk(slot, 0, token_ids(slot, _BEHIND))])
    for start in range(0, _DEPTH, 250):
        runner.run([Chunk(STREAMS, start, token_ids(start, 250))])


def seconds(runner: Any, size: int, clock: Callable[[], float], *, streams: int = STREAMS) -> float:
    """One pass, after which everything is as before."""
    chunks = [Chunk(slot, _BEHIND, token_ids(slot, 1), 1) for slot in range(streams)]
    if size:
        chunks.append(Chunk(STREAMS, _DEPTH, token_ids(_DEPTH, size)))
    began = clock()
    runner.run(chunks)
    took = clock() - began
    for chunk in chunks:
        runner.cut(chunk.slot, chunk.start)
    return took


def measure(runner: Any, rounds: int, clock: Callable[[], float]) -> report.Json:
    """Medians in milliseconds: beside the streams by size of chunk, and the largest chunk alone."""
    fill(runner)
    beside: dict[int, list[float]] = {size: [] for size in SIZES}
    alone: list[float] = []
    for number in range(rounds + 1):
        for size in SIZES:
            took = seconds(runner, size, clock)
            if number:  # the first is to warm up
                beside[size].append(took)
        alone.append(seconds(runner, SIZES[-1], clock, streams=0))
    return {
        "beside_ms": {size: round(statistics.median(t) * 1e3, 2) for size, t in beside.items()},
        "alone_ms": round(statistics.median(alone[1:]) * 1e3, 2),
    }


def table(results: report.Json) -> str:
    """A row for each engine and each of: the pass, gaps and first token if all are of that size."""
    rows = []
    for backend, measured in results["measured"].items():
        beside = {int(size): took for size, took in measured["beside_ms"].items()}
        step, alone = beside[0], measured["alone_ms"] * _PROMPT / SIZES[-1]
        sizes = SIZES[1:]
        gaps = [f"{beside[size] / step:.1f}" for size in sizes]
        firsts = [f"{beside[size] * _PROMPT / size / alone:.2f}" for size in sizes]
        rows.append([f"{backend}: ms a pass", *(report.number(beside[size]) for size in SIZES)])
        rows.append(["gap, × the usual step", "1", *gaps])
        rows.append(["first token, × alone", "", *firsts])
    return report.markdown(["prompt tokens a pass", *map(str, SIZES)], rows)


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--backends", default="hf,llamacpp")
    parser.add_argument("--model", default="100m")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--wall", action="store_true")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    model = models.find(options.model, "float32")
    backends = options.backends.split(",")
    results: report.Json = {
        **report.machine(),
        "versions": {p: importlib.metadata.version(p) for b in backends for p in _PACKAGES[b]},
        "model": options.model,
        "threads": options.threads,
        "clock": "wall" if options.wall else "CPU",
        "measured": {},
    }
    clock = time.perf_counter if options.wall else time.process_time
    for backend in backends:
        loaded = runner(backend, model, options.threads)
        results["measured"][backend] = measure(loaded, options.rounds, clock)
        loaded.close()
    report.write(results, options.output)
    print(table(results))


if __name__ == "__main__":
    main()
