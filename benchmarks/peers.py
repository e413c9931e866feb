"""Enginebay and its peers under the same load: installs all of them, measures, prints tables.

    python3 start.py python benchmarks/peers.py
    python3 start.py python benchmarks/peers.py --engines llamacpp --model demo --streams 1,16
    python3 start.py python benchmarks/peers.py --engines layer --model demo --tokens 1000

Servers of one engine run side by side, all but the measured one stopped by a signal, and take turns
in every round, so that what else the machine does concerns all alike. benchmarks/README.md explains
each number.
"""

import argparse
import asyncio
import contextlib
import json
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from benchmarks import environments, models, report, scenarios
from benchmarks.load import burst
from benchmarks.peer_commands import PEERS
from benchmarks.prompts import Prompts
from benchmarks.servers import Peer, Server, Settings, running

LAYER = "layer"
"""The servers without a model: no scenario makes sense for them, and one of them is the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the command line asks for."""

    model: models.Model
    peers: list[Peer]
    streams: list[int]
    rounds: int
    requests: int
    prompt_tokens: int
    tokens: int
    threads: int
    limits: bool
    scenario_rounds: int
    output: Path
    plot: Path | None

    @property
    def settings(self) -> Settings:
        """What the servers are started with to be put under load."""
        context = -(-(self.prompt_tokens + self.tokens + 16) // 256) * 256
        return Settings(self.model, self.threads, max(self.streams), context)


@dataclass(slots=True)
class Measured:
    """The results of one engine; lists have a value for each round."""

    bursts: dict[str, list[report.Json]] = field(default_factory=dict)
    limits: dict[str, list[report.Json]] = field(default_factory=dict)
    scenarios: dict[str, dict[str, list[Mapping[str, Any]]]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    @contextlib.contextmanager
    def failing(self, name: str) -> Iterator[None]:
        """Note what a server fails with and go on without it."""
        try:
            yield
        except (OSError, RuntimeError, EOFError, psutil.Error, ExceptionGroup) as error:
            group = error.exceptions if isinstance(error, ExceptionGroup) else [error]
            self.errors[name] = "; ".join(str(e) or type(e).__name__ for e in group)[:2000]
            print(f"{name} failed: {self.errors[name]}", flush=True)


async def measure_load(plan: Plan, peers: list[Peer], measured: Measured) -> None:
    """Bursts of all servers in turn, then the limit, in every round."""
    prompts = Prompts(plan.model.folder)
    with contextlib.ExitStack() as stack:
        servers: list[Server] = []
        for peer in peers:
            with measured.failing(peer.name):
                server = stack.enter_context(running(peer, plan.settings))
                servers.append(server)
                await burst(server, 2, prompts.make(2, plan.prompt_tokens, "warm-up"), 8)
                server.pause()
        if not servers:
            return
        for number in range(plan.rounds):
            for streams in plan.streams:
                amount = max(streams, plan.requests)
                seed = f"round {number} streams {streams}"
                texts = prompts.make(amount, plan.prompt_tokens, seed)
                turn = number % len(servers)
                for server in [*servers[turn:], *servers[:turn]]:
                    name = server.peer.name
                    if name in measured.errors:
                        continue
                    with measured.failing(name), server.awake():
                        seen = (await burst(server, streams, texts, plan.tokens)).summary()
                        kept = measured.limits if server.peer.limit else measured.bursts
                        kept.setdefault(name, []).append(seen)
                        show(number, name, seen)
                if plan.limits and peers[0].engine != LAYER:
                    with measured.failing("the limit"):
                        name, speed = limit(plan, peers[0].engine, streams)
                        measured.limits.setdefault(name, []).append(speed)
                        show(number, name, speed)


def limit(plan: Plan, engine: str, streams: int) -> tuple[str, report.Json]:
    """What the hardware could do, measured in a process of its own."""
    script = str(Path(__file__).with_name("limits.py"))
    if engine == "hf":
        name = "limit: Linear layers alone"
        python, arguments = environments.enginebay("hf"), ["gemm", str(plan.model.folder)]
    else:
        name = "limit: bare llama_decode"
        python, arguments = environments.llama_cpp_python(), ["decode", str(plan.model.gguf)]
    amounts = {
        "--streams": streams,
        "--prompt-tokens": plan.prompt_tokens,
        "--tokens": plan.tokens,
        "--threads": plan.threads,
        "--dtype": plan.model.dtype,
    }
    flags = [str(part) for pair in amounts.items() for part in pair]
    command = [str(python), script, *arguments, *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    speed: report.Json = json.loads(done.stdout.splitlines()[-1])
    return name, {"streams": streams, **speed}


async def measure_scenarios(plan: Plan, peers: list[Peer], measured: Measured) -> None:
    """The scenarios, one server after the other."""
    settings = scenarios.settings(plan.settings)
    prompts = Prompts(plan.model.folder)
    for peer in peers:
        seen: dict[str, list[Mapping[str, Any]]] = {name: [] for name in scenarios.NAMES}
        measured.scenarios[peer.name] = seen
        with measured.failing(peer.name), running(peer, settings) as server:
            await burst(server, 2, prompts.make(2, 64, "warm-up"), 8)
            for number in range(plan.scenario_rounds):
                async for name, row in scenario_rows(server, prompts, f"round {number}", settings):
                    seen[name].append(row)
                    print(f"round {number + 1} {peer.name} {name} {row}", flush=True)


async def scenario_rows(
    server: Server, prompts: Prompts, seed: str, settings: Settings
) -> AsyncIterator[tuple[str, Mapping[str, Any]]]:
    """One round of all scenarios that make sense for a server."""
    yield "repeated_prompt", await scenarios.repeated_prompt(server, prompts, seed)
    if server.peer.batches:
        yield "long_prompt", await scenarios.long_prompt(server, prompts, seed, settings.context)
    for number in (1, scenarios.STREAMS):
        yield "conversations", await scenarios.conversations(server, prompts, seed, number)
        if server.peer.constrained:
            yield "constrained", await scenarios.constrained(server, prompts, seed, number)


def show(number: int, name: str, seen: report.Json) -> None:
    """One line about a measurement that has just been made."""
    speed = f"{seen['tokens_per_second']:9.1f} tokens/s"
    cpu = f"{seen['tokens_per_cpu_second']:9.1f} tokens/CPU-s"
    note = "" if seen.get("exact", True) else "  (answers ended early, counted by their pieces)"
    print(
        f"round {number + 1} {seen['streams']:3} streams {name:>26} {speed} {cpu}{note}", flush=True
    )


def read_plan() -> Plan:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engines", default="hf,llamacpp", help="which groups of servers")
    parser.add_argument("--peers", help=f"only these of: {', '.join(PEERS)}")
    parser.add_argument("--model", default="100m", help="demo, 100m, 1b or a folder")
    parser.add_argument("--gguf", type=Path, help="the folder's model as GGUF; else converted")
    parser.add_argument("--dtype", help="of hf; default bfloat16 if the CPU has it, else float32")
    parser.add_argument("--streams", default="1,4,16,64", help="requests at a time")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scenario-rounds", type=int, help="default: as many; 0 leaves them out")
    parser.add_argument("--requests", type=int, default=4, help="at least so many a burst")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--threads", type=int, default=report.usable_cores())
    parser.add_argument("--no-limits", action="store_true", help="leave out the raw limits")
    parser.add_argument("--output", type=Path, help="default benchmarks/results/MODEL.json")
    parser.add_argument("--plot", type=Path, help="SVG file to draw the speeds in")
    args = parser.parse_args()
    engines = args.engines.split(",")
    names = args.peers.split(",") if args.peers else PEERS
    if unknown := set(names).difference(PEERS):
        parser.error(f"unknown peers {', '.join(unknown)}; there are {', '.join(PEERS)}")
    dtype = args.dtype or ("bfloat16" if report.has_bfloat16() else "float32")
    model = models.find(args.model, dtype, args.gguf)
    results = environments.ROOT / "benchmarks" / "results"
    return Plan(
        model=model,
        peers=[
            peer
            for peer in map(PEERS.__getitem__, names)
            if peer.engine in engines and not (peer.limit and args.no_limits)
        ],
        streams=[int(number) for number in args.streams.split(",")],
        rounds=args.rounds,
        requests=args.requests,
        prompt_tokens=args.prompt_tokens,
        tokens=args.tokens,
        threads=args.threads,
        limits=not args.no_limits,
        scenario_rounds=args.rounds if args.scenario_rounds is None else args.scenario_rounds,
        output=args.output or results / f"{LAYER if engines == [LAYER] else model.name}.json",
        plot=args.plot,
    )


async def measure(plan: Plan) -> None:
    """Measure everything, write the results, print their tables."""
    versions = {peer.name: peer.versions() for peer in plan.peers}
    if any(peer.engine == "llamacpp" for peer in plan.peers):
        models.ensure_gguf(plan.model)
    results: report.Json = {
        **report.machine(),
        "model": plan.model.name,
        "dtype": plan.model.dtype,
        "threads": plan.threads,
        "prompt_tokens": plan.prompt_tokens,
        "tokens": plan.tokens,
        "rounds": plan.rounds,
        "versions": versions,
        "engines": {},
    }
    for engine in dict.fromkeys(peer.engine for peer in plan.peers):
        peers = [peer for peer in plan.peers if peer.engine == engine]
        measured = Measured()
        await measure_load(plan, peers, measured)
        if plan.scenario_rounds and engine != LAYER:
            await measure_scenarios(plan, peers, measured)
        results["engines"][engine] = {
            "bursts": measured.bursts,
            "limits": measured.limits,
            "scenarios": measured.scenarios,
            "errors": measured.errors,
        }
        report.write(results, plan.output)
    print(report.tables(results))
    print(f"\nWritten to {plan.output}")


def draw(results: Path, plot: Path) -> None:
    """Draw the results with the Python that has matplotlib."""
    script = str(Path(__file__).with_name("plot.py"))
    subprocess.run([str(environments.tools()), script, str(results), str(plot)], check=True)


def main() -> None:
    """Command line entry."""
    plan = read_plan()
    asyncio.run(measure(plan))
    if plan.plot:
        draw(plan.output, plan.plot)


if __name__ == "__main__":
    main()
