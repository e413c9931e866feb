"""What a cluster costs beside one process: tokens on their way, requests that end early, routing.

    python benchmarks/cluster.py
    python benchmarks/cluster.py --measure-routing
    python benchmarks/cluster.py --print

An engine that makes a token for every stream each 20 ms is asked over HTTP: in the server's
process, in one of its own, on a node of a cluster, and behind a second server (`enginebay-remote`).
All of them run at once on this machine and take turns. Then clients leave, requests are cancelled,
and an engine is killed. With `--measure-routing` instead: chats on 2 and 3 engines with prefix
caches, beside the simulation of `cluster_simulation.py` with the same chats. About 20 minutes, and
10. Exits with 1 if what is demanded of clusters does not hold.
"""

import argparse
import importlib.metadata
import json
import math
import platform
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.cluster_faults import cancelled, killed, left
from benchmarks.cluster_routing import ALIKE, Plan, compared
from benchmarks.cluster_sites import NAMES, STEP, Served, servers
from benchmarks.cluster_streams import measure

RESULTS = Path(__file__).parent / "results" / "cluster.json"
STREAMS = (1, 16, 64)
PLANS = {replicas: Plan(replicas, 6 * replicas) for replicas in (2, 3, 4)}

LEAST_SPEED, MOST_CPU = 0.9, 2.5
"""Of one process with the engine in a process of its own, at the most streams."""

ABORTED, TOLD = 100.0 + STEP * 1000, 1000.0
"""Milliseconds until an engine has aborted what nobody wants, and a client knows of its end."""

_PACKAGES = ("ray", "uvicorn", "uvloop", "httptools", "starlette", "fastapi", "pydantic")


def paths(found: Sequence[Served], streams: Sequence[int], rounds: int, seconds: float) -> Any:
    """Each server with each number of streams, in turn; each round begins with another server."""
    for served in found:
        measure(served, 8, 2.0)  # to warm up
    for number in range(rounds):
        at = number % len(found)
        for each in streams:
            for served in [*found[at:], *found[:at]]:
                row = {"round": number, **measure(served, each, seconds)}
                print(json.dumps(row), flush=True)
                yield row


def faults(found: Sequence[Served], tries: int, kills: int) -> report.Json:
    """Requests that end early, so often on each server; engines killed, of the first cluster."""
    measured: report.Json = {
        "left": [left(served) for served in found for _ in range(tries)],
        "cancelled": [cancelled(served) for served in found for _ in range(tries)],
        "killed": [],
    }
    for served in [each for each in found if each.name == "cluster"]:
        for _ in range(kills):
            measured["killed"].append(killed(served))
            print(json.dumps(measured["killed"][-1]), flush=True)
    return measured


def _spread(values: Iterable[float]) -> report.Json:
    values = list(values)
    return {
        "median": round(statistics.median(values), 3),
        "least": min(values),
        "largest": max(values),
    }


def _ratios(rows: Sequence[report.Json], name: str, streams: int, key: str) -> list[float]:
    """Of a server to `process`, in each round."""
    values = {(row["round"], row["server"]): row[key] for row in rows if row["streams"] == streams}
    return [
        round(value / values[number, "process"], 3)
        for (number, server), value in values.items()
        if server == name and (number, "process") in values
    ]


def verdicts(results: report.Json) -> dict[str, report.Json]:
    """What is demanded, what was found, and whether that is enough; only of what was measured."""
    found: dict[str, report.Json] = {}

    def judge(name: str, values: list[float], what: str, least: float, most: float) -> None:
        """`what`: of all values, that is to be within the bounds."""
        if values:
            spread = _spread(values)
            bounds = [f"at least {least:g}"] if least else []
            bounds += [f"at most {most:g}"] if most < math.inf else []
            demanded = " ".join([what, *bounds])
            holds = least <= spread[what] <= most
            found[name] = {**spread, "demanded": demanded, "holds": holds}

    rows = results.get("paths", [])
    most = max((row["streams"] for row in rows), default=0)
    speed = _ratios(rows, "cluster", most, "tokens_per_second")
    judge(f"tokens/s at {most} streams, to process", speed, "median", LEAST_SPEED, math.inf)
    cpu = _ratios(rows, "cluster", most, "front_us")
    judge(f"CPU of the front at {most} streams, to process", cpu, "median", 0, MOST_CPU)
    early = results.get("faults", {})
    for name, key, bound in (
        ("left", "left_ms", ABORTED),
        ("cancelled", "cancelled_ms", ABORTED),
        ("killed", "error_ms", TOLD),
    ):
        times = [row[key] for row in early.get(name, []) if row["server"] == "cluster"]
        judge(f"{name}, ms", times, "largest", 0, bound)
    for plan in results.get("routing", []):
        for key, away in plan["away"].items():
            name = f"{key} of {plan['replicas']} engines, to simulated"
            judge(name, [round(1 + away, 3)], "median", 1 - ALIKE, 1 + ALIKE)
    return found


def tables(results: report.Json) -> Sequence[str]:
    """Medians of the rounds as Markdown tables; ratios are computed within each round."""
    parts = []
    if rows := results.get("paths"):
        parts.append(_paths_table(rows))
    if early := results.get("faults"):
        parts.append(_faults_table(early))
    if routing := results.get("routing"):
        parts.append(_routing_table(routing))
    head = ["", "median", "least", "largest", "demanded", "holds"]
    body = (
        [name, *(str(each[key]) for key in head[1:-1]), "yes" if each["holds"] else "NO"]
        for name, each in results["verdicts"].items()
    )
    return [*parts, report.markdown(head, body)]


def _paths_table(rows: Sequence[report.Json]) -> str:
    head = ["", "streams", "tokens/s", "to process", "front µs", "to process", "engine's side µs"]
    head += ["first token ms", "late ms", "late 99 %", "client cores"]
    body = []
    for streams in sorted({row["streams"] for row in rows}):
        for name in (name for name in NAMES if any(row["server"] == name for row in rows)):
            own = [row for row in rows if (row["server"], row["streams"]) == (name, streams)]

            def median(read: Callable[[report.Json], float], own: Any = own) -> str:
                return report.number(statistics.median(map(read, own)))

            def ratio(key: str, name: str = name, streams: int = streams) -> str:
                found = _ratios(rows, name, streams, key)
                return f"{statistics.median(found):.2f}" if found else ""

            body.append(
                [
                    name,
                    str(streams),
                    median(lambda row: row["tokens_per_second"]),
                    ratio("tokens_per_second"),
                    median(lambda row: row["front_us"]),
                    ratio("front_us"),
                    median(lambda row: row["engine_us"]),
                    median(lambda row: row["first_ms"]),
                    median(lambda row: row["late_ms"][0]),
                    median(lambda row: row["late_ms"][1]),
                    median(lambda row: row["client_cores"]),
                ]
            )
    return report.markdown(head, body)


def _faults_table(early: report.Json) -> str:
    keys = {"left_ms": "left", "cancelled_ms": "cancelled", "cancelled_client_ms": "cancelled"}
    keys |= {"error_ms": "killed", "again_s": "killed"}
    names = [name for name in NAMES if any(row["server"] == name for row in early["left"])]
    body = []
    for name in names:
        cells = []
        for key, kind in keys.items():
            values = [row[key] for row in early[kind] if row["server"] == name]
            spread = _spread(values) if values else {}
            cells.append(" / ".join(report.number(value) for value in spread.values()))
        body.append([name, *cells])
    head = ["median / least / largest", "left: aborted, ms", "cancelled: aborted, ms"]
    head += ["cancelled: client knows, ms", "killed: error, ms", "killed: next answer, s"]
    return report.markdown(head, body)


def _routing_table(routing: Sequence[report.Json]) -> str:
    head = ["engines, chats", "cached", "simulated", "first token s", "simulated"]
    head += ["tokens/s", "simulated"]
    body = []
    for plan in routing:
        cells = [f"{plan['replicas']}, {plan['chats']}"]
        for key in ("cached", "first_p50", "tokens_s"):
            cells += [report.number(plan[side][key]) for side in ("measured", "simulated")]
        body.append(cells)
    return report.markdown(head, body)


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", default=",".join(map(str, STREAMS)))
    parser.add_argument("--seconds", type=float, default=10, help="of each measurement")
    parser.add_argument("--tries", type=int, default=20, help="to leave and to cancel")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--servers", default=";".join(NAMES), help="separated by semicolons")
    parser.add_argument("--measure-routing", action="store_true", help="only that")
    parser.add_argument("--replicas", default="2,3", help="engines for it, separated by commas")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--print", action="store_true", help="the results of --output again")
    options = parser.parse_args()
    results: report.Json = {}
    if options.output.exists():  # the other half may be there
        results = json.loads(options.output.read_text(encoding="utf-8"))
    if not options.print:
        results |= {
            **report.machine(),
            "python": platform.python_version(),
            "versions": {name: importlib.metadata.version(name) for name in _PACKAGES},
            **(routed(options) if options.measure_routing else measured(options)),
        }
        results["verdicts"] = verdicts(results)
        report.write(results, options.output)
    print("\n\n".join(tables(results)))
    sys.exit(0 if all(each["holds"] for each in results["verdicts"].values()) else 1)


def measured(options: argparse.Namespace) -> report.Json:
    """The paths of tokens, and what ends early."""
    streams = [int(each) for each in options.streams.split(",")]
    with servers(options.servers.split(";")) as found:
        rows = list(paths(found, streams, options.rounds, options.seconds))
        return {"paths": rows, "faults": faults(found, options.tries, options.kills)}


def routed(options: argparse.Namespace) -> report.Json:
    """Chats on clusters of these sizes."""
    plans = [PLANS[int(each)] for each in options.replicas.split(",")]
    return {"routing": [compared(plan, options.rounds) for plan in plans]}


if __name__ == "__main__":
    main()
