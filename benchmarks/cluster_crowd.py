"""Many clients of two servers of a cluster, while engines, a node and a server are killed.

    python benchmarks/cluster_crowd.py --clients 32 --minutes 5
    python benchmarks/cluster_crowd.py --clients 8 --minutes 1 --no-kill

A head, a node, and a node that is killed and joins again; two models with two engines each; two
servers that share limits, the second of which is killed and started again. Every response must be
whole, an error in OpenAI's shape with a code that says what is the matter, one that the client
itself left or cancelled, or broken off because its server was killed; and what it says must be
right as far as it goes. Limits of keys must hold over both servers, `GET /v1/usage` tell what the
clients saw, and at the end nothing may be left: no request anywhere, no missing engine, and the
first server must hold no more threads, open files and memory than after the warm-up. Exits with 1
otherwise.
"""

import argparse
import asyncio
import importlib.metadata
import json
import platform
import random
import sys
import time
from collections import Counter
from collections.abc import Coroutine
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.cluster_crowd_checks import (
    LOSS,
    Checked,
    check_limits,
    check_usage,
    left_over,
    runs,
)
from benchmarks.cluster_crowd_clients import Clients, Seen
from benchmarks.cluster_crowd_site import Place, kill_engines, kill_front, kill_node, place
from benchmarks.crowd_server import Footprint

_QUIET = 60.0
"""Seconds in which everything must be back and nothing left."""


async def phase(here: Place, clients: Clients, number: int, minutes: float, *killers: Any) -> None:
    """Let so many clients in for so long, while these kill; until the last answer has ended.

    What a killer is about to start again is there at the end.
    """
    clients.over = False
    here.enough.clear()
    async with asyncio.TaskGroup() as group:
        for killer in killers:
            group.create_task(killer)
        for _ in range(number):
            group.create_task(clients.run())
        end = time.monotonic() + minutes * 60
        while (left := end - time.monotonic()) > 0:
            await asyncio.sleep(min(30.0, left))
            print(f"{len(clients.seen)} requests, {len(clients.broken)} broken", flush=True)
        clients.over = True
        here.enough.set()


async def crowded(here: Place, args: argparse.Namespace) -> report.Json:
    """Run it; what was seen."""
    draw = random.Random(args.seed)
    clients = Clients(here.urls, here.outages, args.seed)
    shared = here.shared()
    await phase(here, clients, args.clients, args.warm_up)
    await asyncio.to_thread(quiet, here)
    pid = here.fronts[0].process.pid
    before = Footprint.of(pid)
    killers: list[Coroutine[Any, Any, None]] = (
        []
        if args.no_kill
        else [
            kill_engines(here, draw, args.engine_every),
            kill_node(here, draw, args.node_every),
            kill_front(here, draw, args.front_every),
        ]
    )
    await phase(here, clients, args.clients, args.minutes, *killers)
    left = await asyncio.to_thread(quiet, here)
    after = Footprint.of(pid)
    if args.logs:
        keep_logs(here, clients, args.logs)
    checked = Checked()
    in_engines = runs(here.events, here.killed)
    check_limits(clients.seen, in_engines, checked)
    told = [front.get("/v1/usage").json()["data"] for front in here.fronts]
    check_usage(clients.seen, in_engines, here.outages, told[0], checked)
    if _sorted(told[0]) != _sorted(told[1]):
        checked.broken.append(f"the servers tell of different usage: {told}")
    if here.shared() != shared:
        checked.broken.append("what the servers share, which nobody here kills, ended meanwhile")
    never = sum(run.ended == float("inf") for each in in_engines.values() for run in each)
    if never:
        checked.broken.append(f"{never} requests never ended in their engines")
    return {
        "clients": args.clients,
        "minutes": args.minutes,
        "done": here.counts,
        "outcomes": dict(sorted(Counter(map(_outcome, clients.seen)).items())),
        "broken": [*clients.broken[:20], *checked.broken],
        "left_over": left,
        "limits and usage": {**checked.figures, "seconds that a killed front may lose": LOSS},
        "before": asdict(before),
        "after": asdict(after),
        "grown": before.grown_to(after),
    }


def _outcome(seen: Seen) -> str:
    return seen.outcome.partition(":")[0]


def _sorted(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


def quiet(here: Place) -> list[str]:
    """Wait until nothing is left, but not for ever; what is left then. Blocks."""
    deadline = time.monotonic() + _QUIET
    while (left := left_over(here.fronts)) and time.monotonic() < deadline:
        time.sleep(0.5)
    return left


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--warm-up", type=float, default=0.5, help="minutes before it counts")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine-every", type=float, default=20, help="seconds")
    parser.add_argument("--node-every", type=float, default=60, help="seconds")
    parser.add_argument("--front-every", type=float, default=60, help="seconds")
    parser.add_argument("--no-kill", action="store_true", help="nothing is killed")
    parser.add_argument("--logs", type=Path, help="folder for the logs of all processes")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    args = parser.parse_args()
    with place() as here:
        results = asyncio.run(crowded(here, args))
    print(json.dumps(results, indent=1))
    if args.output:
        versions = {name: importlib.metadata.version(name) for name in ("ray", "enginebay")}
        about = {**report.machine(), "python": platform.python_version(), "versions": versions}
        report.write({**about, **results}, args.output)
    sys.exit(1 if results["broken"] or results["left_over"] or results["grown"] else 0)


def keep_logs(here: Place, clients: Clients, folder: Path) -> None:
    """What processes wrote, engines wrote down, and clients saw."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in [*here.here.folder.glob("*.log"), here.events]:
        (folder / file.name).write_bytes(file.read_bytes())
    lines = [json.dumps({**asdict(seen), "pieces": []}) for seen in clients.seen]
    lines += [json.dumps(asdict(outage)) for outage in here.outages]
    lines.append(json.dumps({"killed": here.killed}))
    (folder / "seen.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
