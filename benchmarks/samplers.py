"""Measure the CPU time of each sampler over large vocabularies, in both engines.

    python benchmarks/samplers.py --step-llamacpp 10 --step-hf 40

Each sampler draws tokens from the same rows of logits, alone and in a batch. Samplers take turns,
and the clock is the CPU time of this process, so that other programs matter little.
"""

import argparse
import importlib.metadata
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import report
from enginebay import GenerationRequest, NumpyRunner, SamplingParams
from enginebay_hf.sampling_runner import SamplingRunner
from enginebay_hf.sampling_runner import Vocabulary as TorchVocabulary

RESULTS = Path(__file__).parent / "results" / "samplers.json"
SIZES = (262_144, 151_936)
BATCHES = (1, 16)
_PROMPT = tuple(range(100, 600))
_ROWS = 8
_MASKED = "mask of a grammar"
_SAMPLERS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {},
    "top_k": {"top_k": 40},
    "top_p": {"top_p": 0.95},
    "min_p": {"min_p": 0.05},
    "top_k, top_p, min_p": {"top_k": 40, "top_p": 0.95, "min_p": 0.05},
    "typical_p": {"typical_p": 0.95},
    "top_n_sigma": {"top_n_sigma": 1.0},
    "top_a": {"top_a": 0.2},
    "tfs": {"tfs": 0.95},
    "xtc": {"xtc_probability": 0.5},
    "smoothing": {"smoothing_factor": 0.3},
    "dynatemp": {"dynatemp_range": 0.5},
    "temperature_last": {"temperature_last": True, "min_p": 0.05},
    "mirostat 1": {"mirostat": 1},
    "mirostat 2": {"mirostat": 2},
    "adaptive": {"adaptive_target": 0.3},
    "skew": {"skew": 0.5},
    "repetition_penalty": {"repetition_penalty": 1.1},
    "presence, frequency": {"presence_penalty": 0.5, "frequency_penalty": 0.5},
    "penalty_last_n": {"repetition_penalty": 1.1, "penalty_last_n": 64},
    "dry": {"dry_multiplier": 0.8},
    "logit_bias": {"logit_bias": {5: 1.0}},
    "allowed_token_ids": {"allowed_token_ids": tuple(range(50))},
    "min_tokens": {"min_tokens": 10_000},
    "logprobs": {"logprobs": 5},
    _MASKED: {},
}


class _WithoutModel:
    """The parts of a runner that no sampler needs."""

    def run(self, *_: Any) -> Any:
        raise NotImplementedError

    copy = cut = clear = run


class _Numpy(_WithoutModel, NumpyRunner):
    pass


class _Torch(_WithoutModel, SamplingRunner):
    pass


def runners(size: int) -> dict[str, Any]:
    """What samples in each engine."""
    return {
        "llamacpp": _Numpy(size, {1}, chr),
        "hf": _Torch(TorchVocabulary(chr, size, frozenset({1}))),
    }


def logits(size: int) -> NDArray[np.float32]:
    """Rows `[_ROWS, size]` as models give them: some are sure of the next token, others are not."""
    chance = np.random.default_rng(size)
    rank = np.log(np.arange(1, size + 1))
    rows = [
        chance.permutation(chance.standard_normal(size) - slope * rank)
        for slope in np.linspace(1.2, 2.6, _ROWS)
    ]
    return np.array(rows, np.float32)


def measure(size: int, batch: int, rounds: int) -> report.Json:
    """Milliseconds of CPU time for a row, by engine and sampler."""
    given = np.resize(logits(size), (max(batch, _ROWS), size))
    mask = np.full((size + 31) // 32, 0x5555_5555, np.int32)
    found: report.Json = {}
    for engine, runner in runners(size).items():
        calls: dict[str, Callable[[int], Any]] = {}
        for name, params in _SAMPLERS.items():
            sampling = SamplingParams(**{"temperature": 0.8, "seed": 1, **params})
            request = GenerationRequest(request_id="r", prompt_token_ids=_PROMPT, sampling=sampling)
            calls[name] = _call(
                runner,
                torch.from_numpy(given) if engine == "hf" else given,
                [runner.sampler(request, index) for index in range(batch)],
                [mask if name == _MASKED else None] * batch,
            )
        found[engine] = _cpu_times(calls, rounds, batch)
    return found


def _call(runner: Any, given: Any, samplers: list[Any], masks: list[Any]) -> Callable[[int], Any]:
    """One step, whose number says with which rows."""
    batch = len(samplers)
    starts = range(0, len(given) - batch + 1, batch)

    def sample(number: int) -> None:
        start = starts[number % len(starts)]
        runner.sample(given[start : start + batch], range(batch), samplers, masks)

    return sample


def _cpu_times(calls: dict[str, Callable[[int], Any]], rounds: int, batch: int) -> dict[str, float]:
    """The median over rounds, in which the samplers take turns."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(-1, rounds):
        for name, call in calls.items():
            start = time.process_time()
            for row in range(_ROWS // min(batch, _ROWS)):
                call(row)
            if number >= 0:  # the first is to warm up
                rows = max(batch, _ROWS)
                taken[name].append((time.process_time() - start) / rows * 1e3)
    return {name: round(statistics.median(times), 3) for name, times in taken.items()}


def table(results: report.Json) -> str:
    """A row for each sampler, in milliseconds and in percent of a step of one stream."""
    measured, steps = results["measured"], results["step_ms"]
    columns = [(e, s, b) for e in steps for s in results["sizes"] for b in results["batches"]]
    rows = []
    for name in _SAMPLERS:
        values = [measured[str(s)][str(b)][e][name] for e, s, b in columns]
        shares = [
            f"{report.number(100 * value / steps[engine])} %"
            for (engine, _, batch), value in zip(columns, values, strict=True)
            if batch == 1
        ]
        rows.append([name, *map(report.number, values), *shares])
    head = [f"{e}, {s:,}, batch {b}" for e, s, b in columns]
    shared = [f"{e}, {s:,}, share" for e, s, b in columns if b == 1]
    return report.markdown(["sampler", *head, *shared], rows)


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--step-llamacpp", type=float, default=20.0, help="milliseconds of a step")
    parser.add_argument("--step-hf", type=float, default=60.0, help="milliseconds of a step")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results: report.Json = {
        **report.machine(),
        "versions": {p: importlib.metadata.version(p) for p in ("numpy", "torch")},
        "threads": options.threads,
        "step_ms": {"llamacpp": options.step_llamacpp, "hf": options.step_hf},
        "sizes": SIZES,
        "batches": BATCHES,
        "measured": {
            str(size): {str(batch): measure(size, batch, options.rounds) for batch in BATCHES}
            for size in SIZES
        },
    }
    report.write(results, options.output)
    print(table(results))


if __name__ == "__main__":
    main()
