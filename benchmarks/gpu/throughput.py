"""Tokens a second of every engine on the device, free and held to a schema, beside `generate()`.

All servers are up at the same time, paused but for the one being measured. In every round each
takes its turn for each number of streams, so ratios compare what ran under the same conditions.
"""

import contextlib
import statistics
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks import models, report
from benchmarks.constraints import SCHEMAS
from benchmarks.gpu.engines import Device, device_options
from benchmarks.load import burst
from benchmarks.peer_commands import EXACT_LENGTH, enginebay, json_schema
from benchmarks.prompts import Prompts
from benchmarks.servers import Peer, Server, Settings, running

Json = dict[str, Any]
BASELINE = "generate()"
WAYS = ("free", *SCHEMAS)
PROMPT_TOKENS = 64
CONTEXT = 1024


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured: so many rounds, each with every number of streams."""

    streams: Sequence[int]
    rounds: int
    tokens: int


def find_model(name: str, device: Device) -> models.Model:
    """The model in every format that engines load, made if need be."""
    small = "bfloat16" if report.has_bfloat16() else "float32"
    model = models.find(name, "float16" if device == "cuda" else small)
    models.ensure_gguf(model)
    return model


class Contender(Protocol):
    """What is measured."""

    async def turn(self, prompts: Mapping[str, list[str]], tokens: int) -> dict[str, Json]:
        """Answer the prompts of every way that it has, all of a way at once: numbers by way."""
        ...


class Baseline:
    """`generate()`, which knows no schemas."""

    def __init__(self, model: models.Model, device: Device) -> None:
        from benchmarks.gpu.baseline import Generate

        self._generate = Generate(model, device)

    async def turn(self, prompts: Mapping[str, list[str]], tokens: int) -> dict[str, Json]:
        speed = self._generate.tokens_per_second(prompts["free"], tokens)
        return {"free": {"streams": len(prompts["free"]), "tokens_per_second": round(speed, 2)}}


class Served:
    """A server, awake only while it has its turn."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._ways = {"free": server} | {
            name: server.constrained(schema) for name, schema in SCHEMAS.items()
        }
        server.pause()

    async def turn(self, prompts: Mapping[str, list[str]], tokens: int) -> dict[str, Json]:
        found = {}
        with self._server.awake():
            for way, server in self._ways.items():
                seen = await burst(server, len(prompts[way]), prompts[way], tokens)
                if not seen.exact:
                    raise RuntimeError(f"the answers of {way} are not {tokens} tokens long")
                found[way] = seen.summary()
        return found


async def measure(engines: Sequence[str], device: Device, model: models.Model, plan: Plan) -> Json:
    """The bursts of every engine and of the baseline by way, and the errors of those that did not
    start or failed on the way: they are left out from then on.
    """
    settings = Settings(model, report.usable_cores(), max(plan.streams), CONTEXT)
    prompts = Prompts(model.folder)
    options = {engine: _options(engine, device, settings) for engine in engines}
    bursts: dict[str, dict[str, list[Json]]] = {}
    errors: dict[str, str] = {}
    contenders: dict[str, Contender] = {}

    async def turn(name: str, streams: int, seed: str) -> dict[str, Json]:
        asked = {way: prompts.make(streams, PROMPT_TOKENS, f"{seed} {way}") for way in WAYS}
        return await contenders[name].turn(asked, plan.tokens)

    with contextlib.ExitStack() as stack:
        for name in (*engines, BASELINE):
            with _noting(name, errors):
                if name == BASELINE:
                    contenders[name] = Baseline(model, device)
                else:
                    server = stack.enter_context(running(_peer(name, options[name]), settings))
                    contenders[name] = Served(server)
                for streams in plan.streams:  # kernels are chosen, graphs made, schemas compiled
                    await turn(name, streams, f"warm {streams}")
                bursts[name] = {}
        for number in range(plan.rounds):
            for streams in plan.streams:
                for name in _rotated(list(bursts), number):
                    if name in errors:
                        continue
                    with _noting(name, errors):
                        found = await turn(name, streams, f"{number} {streams}")
                        for way, seen in found.items():
                            bursts[name].setdefault(way, []).append(seen)
    return {
        "model": model.name,
        "dtype": model.dtype,
        "prompt_tokens": PROMPT_TOKENS,
        "tokens": plan.tokens,
        "options": options,
        "bursts": bursts,
        "errors": errors,
    }


def _rotated(names: list[str], by: int) -> list[str]:
    by %= len(names) or 1
    return names[by:] + names[:by]


def _options(engine: str, device: Device, settings: Settings) -> Json:
    options: Json = {"max_batch_size": settings.slots, "context_length": settings.context}
    if engine == "hf":
        options["dtype"] = settings.model.dtype
    if engine == "exllamav2":
        options["cache_tokens"] = settings.slots * settings.context
    return options | device_options(engine, device)


def _peer(engine: str, options: Json) -> Peer:
    def command(_: Path, settings: Settings, port: int) -> list[str]:
        path = settings.model.gguf if engine == "llamacpp" else settings.model.folder
        return enginebay(engine, path, options, port)

    python = Path(sys.executable)
    name = f"enginebay-{engine}"
    return Peer(name, engine, lambda: python, command, EXACT_LENGTH, constrained=json_schema)


@contextlib.contextmanager
def _noting(name: str, errors: dict[str, str]) -> Iterator[None]:
    """Let an engine fail alone."""
    try:
        yield
    except Exception as error:
        traceback.print_exc()
        errors[name] = f"{type(error).__name__}: {error}"[:2000]


def table(measured: Json) -> str:
    """Medians of the rounds as Markdown; ratios are medians of the rounds' ratios."""
    rows = []
    baseline = measured["bursts"].get(BASELINE, {}).get("free", [])
    for name, ways in measured["bursts"].items():
        for way, bursts in ways.items():
            for streams in dict.fromkeys(each["streams"] for each in bursts):
                speeds = _speeds(bursts, streams)
                free = _speeds(ways["free"], streams) if way != "free" else []
                cells = [
                    name if name == BASELINE else f"{name}, {way}",
                    str(streams),
                    report.number(statistics.median(speeds)),
                    _ratio(speeds, _speeds(baseline, streams) if name != BASELINE else []),
                    _ratio(speeds, free),
                ]
                rows.append((streams, cells + _latencies(bursts, streams)))
    rows.sort(key=lambda row: row[0])
    head = ["", "streams", "tokens/s", f"× {BASELINE}", "× free"]
    head += ["TTFT p50 ms", "p99", "inter-token p50 ms", "p99"]
    return report.markdown(head, (cells for _, cells in rows))


def _speeds(bursts: list[Json], streams: int) -> list[float]:
    return [each["tokens_per_second"] for each in bursts if each["streams"] == streams]


def _ratio(speeds: list[float], others: list[float]) -> str:
    pairs = list(zip(speeds, others, strict=False))
    return f"{statistics.median(a / b for a, b in pairs):.2f}" if pairs else ""


def _latencies(bursts: list[Json], streams: int) -> list[str]:
    mine = [each for each in bursts if each["streams"] == streams and "ttft_ms" in each]
    return [
        report.number(statistics.median(each[what][which] for each in mine)) if mine else ""
        for what in ("ttft_ms", "inter_token_ms")
        for which in ("p50", "p99")
    ]
