"""Tokens a second of one engine on the device, free and held to a schema, next to its peer.

    python -m benchmarks.gpu.throughput --device cuda --model 1b --engine hf --record FILE

The server is paused while its peer is measured. In every round each takes its turn for each number
of streams, so ratios compare what ran under the same conditions. Without `--engine` only the model
is made, in every format.
"""

import argparse
import asyncio
import contextlib
import math
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

from benchmarks import environments, models, report
from benchmarks.constraints import SCHEMAS
from benchmarks.gpu import baseline, recording
from benchmarks.gpu.engines import ENGINES, Device, device_options
from benchmarks.load import burst
from benchmarks.peer_commands import EXACT_LENGTH, enginebay, json_schema
from benchmarks.prompts import Prompts
from benchmarks.servers import Peer, Server, Settings, running

Json = dict[str, Any]
WAYS = ("free", *SCHEMAS)
PROMPT_TOKENS = 64
CONTEXT = 1024
STREAMS = (1, 8, 32)
WARM_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured: rounds until the next would not end in `seconds`, five at most. If already
    the first does not, it is cut short.
    """

    seconds: float
    streams: Sequence[int] = STREAMS
    rounds: int = 5
    tokens: int = 128


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


class Library:
    """A peer in this process, which knows no schemas."""

    def __init__(self, peer: baseline.Baseline) -> None:
        self._peer = peer

    async def turn(self, prompts: Mapping[str, list[str]], tokens: int) -> dict[str, Json]:
        asked = prompts["free"]
        speed = baseline.tokens_per_second(self._peer, asked, tokens)
        return {"free": {"streams": len(asked), "tokens_per_second": round(speed, 2)}}


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


async def measure(
    engine: str, device: Device, model: models.Model, plan: Plan, record: Path
) -> None:
    """Write down the bursts of the engine and its peers, and the errors of those that did not
    start or failed on the way: they are left out from then on.
    """
    deadline = monotonic() + plan.seconds
    settings = Settings(model, report.usable_cores(), max(plan.streams), CONTEXT)
    prompts = Prompts(model.folder)
    contenders: dict[str, Contender] = {}
    ours = f"enginebay-{engine}"

    async def turn(name: str, streams: int, tokens: int, seed: str) -> dict[str, Json]:
        asked = {way: prompts.make(streams, PROMPT_TOKENS, f"{seed} {way}") for way in WAYS}
        return await contenders[name].turn(asked, tokens)

    async def warm(name: str) -> None:  # kernels are chosen, graphs made, schemas compiled
        for streams in plan.streams:
            await turn(name, streams, WARM_TOKENS, f"warm {streams}")

    with contextlib.ExitStack() as stack:
        with _noting(ours, contenders, record):
            server = stack.enter_context(running(_peer(engine, device, settings), settings))
            contenders[ours] = Served(server)
            await warm(ours)
        with _noting("the peer", contenders, record):
            for peer in baseline.peers(engine, model, device, settings.slots, CONTEXT):
                contenders[peer.name] = Library(peer)
                await warm(peer.name)
        longest = 0.0
        for number in range(plan.rounds):
            start = monotonic()
            if start + longest > deadline:
                break
            for streams in plan.streams:
                for name in _rotated(list(contenders), number):
                    if monotonic() > deadline:
                        return
                    with _noting(name, contenders, record):
                        found = await turn(name, streams, plan.tokens, f"{number} {streams}")
                        for way, seen in found.items():
                            about = {"engine": engine, "name": name, "peer": name != ours}
                            figures = {**about, "way": way, "round": number, **seen}
                            title = f"{name}, {way}, {streams} streams, round {number}"
                            recording.write(record, title, "passed", figures=figures)
            longest = max(longest, monotonic() - start)


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


def _peer(engine: str, device: Device, settings: Settings) -> Peer:
    options = _options(engine, device, settings)

    def command(_: Path, settings: Settings, port: int) -> list[str]:
        path = settings.model.gguf if engine == "llamacpp" else settings.model.folder
        return enginebay(engine, path, options, port)

    python = Path(sys.executable)
    name = f"enginebay-{engine}"
    return Peer(name, engine, lambda: python, command, EXACT_LENGTH, constrained=json_schema)


@contextlib.contextmanager
def _noting(name: str, contenders: dict[str, Contender], record: Path) -> Iterator[None]:
    """Let a contender fail alone; it has no more turns."""
    try:
        yield
    except Exception as error:
        traceback.print_exc()
        contenders.pop(name, None)
        recording.write(record, name, "failed", f"{type(error).__name__}: {error}")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], required=True)
    parser.add_argument("--model", required=True, help="demo, 100m, 1b or a Llama's folder")
    parser.add_argument("--engine", choices=ENGINES)
    parser.add_argument("--record", type=Path, required=True, help="file for what was measured")
    parser.add_argument("--seconds", type=float, default=math.inf, help="for all of it")
    options = parser.parse_args(arguments)
    start = monotonic()
    model = find_model(options.model, options.device)
    made = monotonic() - start
    if not options.engine:
        recording.write(options.record, f"the model {model.name}", "passed", seconds=made)
        return
    plan = Plan(options.seconds - made - 10)  # loading the libraries, ending the server
    asyncio.run(measure(options.engine, options.device, model, plan, options.record))
    log = environments.FOLDER / f"enginebay-{options.engine}.log"
    if log.exists():
        print(f"The server's log:\n{log.read_text('utf-8', errors='replace')[-20000:]}")


if __name__ == "__main__":
    main(sys.argv[1:])
