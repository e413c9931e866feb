"""What compiling a schema and filling masks cost, for vocabularies of several sizes."""

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

from benchmarks.grammar_engines_adapters import Compiled, Engine, Json, Mask
from benchmarks.grammar_engines_schemas import PROSE, SAMPLES, TOOL
from benchmarks.grammar_engines_vocabularies import tokenizer, vocabulary

VOCABULARIES = ("demo", "32k", "128k")
COMPILATIONS = 3
MATCHERS = 50
TRIGGER, END = "<tool_call>", "</tool_call>"
_PROSES = 4


def speed(kinds: Sequence[type[Engine]], rounds: int) -> Json:
    """Times in microseconds by vocabulary, engine and schema; the engines take turns."""
    results: Json = {}
    for name in VOCABULARIES:
        tokens = tokenizer(name)
        known = vocabulary(tokens)
        built: list[tuple[Engine, float]] = []
        for kind in kinds:
            start = time.perf_counter()
            built.append((kind(known), time.perf_counter() - start))
        of_engine: Json = {engine.name: {"build_ms": 1e3 * seconds} for engine, seconds in built}
        for sample in SAMPLES:
            ids = tokens.encode(sample.text).ids
            for engine, _ in built:
                made, compiled = _compiling(partial(engine.schema, sample.schema))
                made |= _decoding(engine, compiled, ids, rounds)
                of_engine[engine.name][sample.name] = made | {"tokens": len(ids)}
        prose = tokens.encode(PROSE * _PROSES).ids
        call = tokens.encode(TRIGGER + TOOL.text + END).ids
        for engine, _ in built:
            made, compiled = _compiling(partial(engine.triggered, TRIGGER, TOOL.schema, END))
            made["prose"] = _decoding(engine, compiled, prose, rounds)
            made["call"] = _decoding(engine, compiled, prose + call, rounds, skip=len(prose))
            of_engine[engine.name]["triggered"] = made
        results[name] = {"size": len(known.tokens), "engines": of_engine}
    return results


def _compiling(compile_it: Callable[[], Compiled]) -> tuple[Json, Compiled]:
    """Compiling from nothing, and a further matcher of what has been compiled."""
    wall, cpu = [], []
    for _ in range(COMPILATIONS):
        started, used = time.perf_counter(), time.process_time()
        compiled = compile_it()
        wall.append(1e3 * (time.perf_counter() - started))
        cpu.append(1e3 * (time.process_time() - used))
    started = time.perf_counter()
    for _ in range(MATCHERS):
        compiled.matcher()
    cached = 1e3 * (time.perf_counter() - started) / MATCHERS
    cost = {"compile_ms": statistics.median(wall), "compile_cpu_ms": statistics.median(cpu)}
    return cost | {"cached_ms": cached}, compiled


def _decoding(
    engine: Engine, compiled: Compiled, ids: Sequence[int], rounds: int, skip: int = 0
) -> Json:
    """Masks for a document's tokens: the first time, and the median of further rounds for each."""
    mask = engine.mask()
    runs = [_decode(compiled, ids, mask) for _ in range(rounds + 1)]
    first, *further = [times[skip:] for times, _ in runs]
    accepting = [times[skip:] for _, times in runs[1:]]
    return {
        "first_us": _spread(first),
        "mask_us": _spread(list(map(statistics.median, zip(*further, strict=True)))),
        "accept_us": _spread(list(map(statistics.median, zip(*accepting, strict=True)))),
    }


def _decode(compiled: Compiled, ids: Sequence[int], mask: Mask) -> tuple[list[float], list[float]]:
    """Microseconds that filling the mask and accepting took, for each token."""
    matcher = compiled.matcher()
    filling, accepting = [], []
    for token in ids:
        start = time.perf_counter_ns()
        matcher.fill(mask)
        filled = time.perf_counter_ns()
        if not mask[token // 32] >> (token % 32) & 1:
            raise ValueError(f"token {token} is part of the document, but not of the mask")
        accept = time.perf_counter_ns()
        matcher.accept(token)
        accepting.append((time.perf_counter_ns() - accept) / 1e3)
        filling.append((filled - start) / 1e3)
    if not matcher.may_end():
        raise ValueError("the document has ended, but not the grammar")
    return filling, accepting


def _spread(times: list[float]) -> Json:
    ordered = sorted(times)
    return {
        "median": statistics.median(ordered),
        "p99": ordered[int(0.99 * len(ordered))],
        "max": ordered[-1],
        "mean": statistics.fmean(ordered),
    }
