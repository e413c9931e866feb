"""What does it cost an answer to keep to a JSON schema?

    python3 start.py python benchmarks/constraints.py
    python3 start.py python benchmarks/constraints.py --engines llamacpp --model demo --rounds 3

One server of each engine answers free requests and constrained ones in turn, several rounds in one
run, each answer exactly as long; the ratio is computed within each round. `text` is a schema of
strings, in which hardly a token is forced; `records` one of objects, whose keys and brackets are
forced and need no step of their own. Greedy, so that all measure the same way of sampling.

Then the time to compile: a schema of the first time, and again, for each vocabulary that
`grammar_engines.py` compares with.
"""

import argparse
import asyncio
import contextlib
import gc
import statistics
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks import grammar_engines_schemas as samples
from benchmarks import models, report
from benchmarks.grammar_engines_vocabularies import tokenizer, vocabulary
from benchmarks.load import burst
from benchmarks.peer_commands import PEERS
from benchmarks.prompts import Prompts
from benchmarks.servers import Server, Settings, running
from enginebay import GrammarCompiler, Vocabulary, json_value

Json = dict[str, Any]

RESULTS = Path(__file__).parent / "results" / "constraints.json"
ENGINES = {"hf": "enginebay-hf", "llamacpp": "enginebay-llamacpp"}
COMPILATIONS = 5
PROMPT_TOKENS = 64

_ENDLESS = 500  # entries, more than an answer has room for
SCHEMAS: dict[str, Json] = {
    "text": {
        "type": "array",
        "items": {"type": "string", "minLength": 200, "maxLength": 400},
        "minItems": _ENDLESS,
    },
    "records": {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {
                "first_name": {"type": "string", "maxLength": 20},
                "last_name": {"type": "string", "maxLength": 20},
                "department": {"enum": ["sales", "support", "research"]},
                "age": {"type": "integer", "minimum": 18, "maximum": 99},
            },
            "required": ["first_name", "last_name", "department", "age"],
            "additionalProperties": False,
        },
        "minItems": _ENDLESS,
    },
}


async def decode(
    server: Server, prompts: Prompts, streams: Sequence[int], rounds: int, tokens: int
) -> Json:
    """Tokens/s by way and number of streams, a number each round."""
    ways = {"free": server, **{name: server.constrained(s) for name, s in SCHEMAS.items()}}
    speeds: Json = {name: {str(n): [] for n in streams} for name in ways}
    for name, way in ways.items():  # compiled, and warm
        await burst(way, 1, prompts.make(1, PROMPT_TOKENS, f"warm {name}"), tokens)
    for number in range(rounds):
        for n in streams:
            order = list(ways)[number % len(ways) :] + list(ways)[: number % len(ways)]
            for name in order:
                asked = prompts.make(max(n, 2), PROMPT_TOKENS, f"{number} {n} {name}")
                seen = await burst(ways[name], n, asked, tokens)
                if not seen.exact:
                    raise RuntimeError(f"{server.peer.name}: {name} is not {tokens} tokens long")
                speeds[name][str(n)].append(round(seen.tokens / seen.seconds, 1))
    return speeds


def compiling() -> Json:
    """Milliseconds to compile each schema, by vocabulary: the first time and again."""
    measured: Json = {}
    for name in ("demo", "32k", "128k"):
        made = vocabulary(tokenizer(name))
        known = Vocabulary(
            tokens=made.tokens,
            special_token_ids=frozenset(made.special),
            end_token_ids=frozenset([made.end]),
            encode=made.encode,
        )
        measured[name] = {}
        for sample in (samples.SMALL, samples.TOOL, samples.LARGE):
            cold, again = [], []
            for _ in range(COMPILATIONS):
                compiler = GrammarCompiler(known)
                compiler.read_vocabulary()
                gc.collect()
                grammar = json_value(sample.schema)
                start = perf_counter()
                compiler.matcher(grammar)
                first = perf_counter()
                compiler.matcher(grammar)
                cold.append((first - start) * 1e3)
                again.append((perf_counter() - first) * 1e3)
            measured[name][sample.name] = {
                "cold_ms": round(statistics.median(cold), 2),
                "cached_ms": round(statistics.median(again), 4),
            }
    return measured


def tables(results: Json) -> str:
    """The results as Markdown."""
    rows = []
    for engine, speeds in results["decode"].items():
        for streams, free in speeds["free"].items():
            cells = [engine, streams, report.number(statistics.median(free))]
            for name in SCHEMAS:
                found = speeds[name][streams]
                ratio = statistics.median(b / a for a, b in zip(free, found, strict=True))
                cells += [report.number(statistics.median(found)), f"{ratio:.2f}"]
            rows.append(cells)
    head = ["engine", "streams", "free tokens/s"]
    for name in SCHEMAS:
        head += [f"{name} tokens/s", f"{name} ×"]
    compiled = [
        [name, sample, f"{times['cold_ms']:.2f}", f"{times['cached_ms']:.3f}"]
        for name, by_sample in results.get("compile", {}).items()
        for sample, times in by_sample.items()
    ]
    compile_head = ["vocabulary", "schema", "first time, ms", "again, ms"]
    return "\n\n".join([report.markdown(head, rows), report.markdown(compile_head, compiled)])


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", default="hf,llamacpp")
    parser.add_argument("--model", default="100m")
    parser.add_argument("--streams", default="1,16")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=report.usable_cores())
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    streams = [int(n) for n in options.streams.split(",")]
    dtype = "bfloat16" if report.has_bfloat16() else "float32"
    model = models.find(options.model, dtype)
    models.ensure_gguf(model)
    settings = Settings(model, options.threads, max(streams), model.context_length)
    results: Json = {"machine": report.machine(), "model": model.name, "decode": {}}
    for engine in options.engines.split(","):
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(running(PEERS[ENGINES[engine]], settings))
            prompts = Prompts(model.folder)
            found = await decode(server, prompts, streams, options.rounds, options.tokens)
        results["decode"][engine] = found
    if not options.no_compile:
        results["compile"] = compiling()
    report.write(results, options.output)
    print(tables(results))


if __name__ == "__main__":
    asyncio.run(main())
