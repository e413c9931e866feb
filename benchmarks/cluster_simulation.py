"""What routing does for a cluster of 10, 100 and 1,000 engines, and what of it is full first.

    python benchmarks/cluster_simulation.py
    python benchmarks/cluster_simulation.py --engines 10 --output new.json
    python benchmarks/cluster_simulation.py --print --into docs/internals/routing.md

Simulated, by discrete events: the engines, the chats and the time. Real are the index that chooses
(`PrefixAffinity`) with its memory and time, and the costs of other parts, which were measured.
About 15 minutes on two cores.
"""

import argparse
import json
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks import report
from benchmarks.cluster_simulation_chats import Arrivals, simulate
from benchmarks.cluster_simulation_chats import simulate_chats as simulate_chats
from benchmarks.cluster_simulation_engines import BLOCK, Machine
from benchmarks.cluster_simulation_limits import (
    PARTS,
    SETUPS,
    Costs,
    IndexCost,
    Load,
    full_at,
    measure_index,
    shares,
)
from benchmarks.cluster_simulation_routing import POLICIES

RESULTS = Path(__file__).parent / "results" / "cluster_simulation.json"
SIZES = (10, 100, 1000)
DEFAULT_REMEMBER = 8192
"""Blocks of each engine, unless `PrefixAffinity` is told."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Simulate so many engines for so many seconds, with each of these rates and policies."""

    engines: int
    seconds: float
    rates: Sequence[float]
    policies: Sequence[str]


_MANY = [name for name in POLICIES if name != "prefix, 2 fronts"]
_SHORT = [name for name in _MANY if name not in ("longest prefix", "prefix, 4 fronts")]
PLANS = (
    Plan(1000, 120, (0.25,), _SHORT),
    Plan(100, 1200, (0.25,), _MANY),
    Plan(100, 120, (0.25,), _SHORT),
    Plan(10, 1200, (0.10, 0.25, 0.45, 0.60), list(POLICIES)),
)
"""The slowest first. Caches of a thousand would take too long to fill: a hundred is as short."""


def _run(plan: Plan, rate: float, policy: str) -> report.Json:
    began = time.perf_counter()
    figures = simulate(policy, plan.engines, Arrivals(rate=rate, seconds=plan.seconds))
    row = {"engines": plan.engines, "seconds": plan.seconds, "rate": rate, "policy": policy}
    return {**row, **asdict(figures), "took_s": round(time.perf_counter() - began, 1)}


def simulated(plans: Sequence[Plan], processes: int) -> Iterator[report.Json]:
    """A row for each rate and policy of each plan, in the plans' order."""
    with ProcessPoolExecutor(processes) as pool:
        rows = [
            pool.submit(_run, plan, rate, policy)
            for plan in plans
            for policy in reversed(plan.policies)
            for rate in plan.rates
        ]
        for row in rows:
            yield row.result()


def measured_indexes(sizes: Sequence[int]) -> list[IndexCost]:
    """Full indexes: of what an engine's cache holds, and up to 100 engines of the default."""
    cache = Machine().cache_tokens // BLOCK
    costs = [measure_index(engines, cache) for engines in sizes]
    return costs + [measure_index(size, DEFAULT_REMEMBER) for size in sizes if size <= 100]


def limits(
    index: Sequence[IndexCost], sizes: Sequence[int], costs: Costs, load: Load
) -> list[report.Json]:
    """For each setup how full its parts are at each size, and with how many engines they are."""
    kept = min(cost.remember for cost in index)
    own = [cost for cost in index if cost.remember == kept]
    return [
        {
            "setup": name,
            "shares": {
                str(size): {
                    part: round(share, 3)
                    for part, share in shares(size, setup, costs, load, own).items()
                }
                for size in sizes
            },
            "full_at": {part: full_at(part, setup, costs, load, own) for part in PARTS},
        }
        for name, setup in SETUPS.items()
    ]


def _cell(row: report.Json) -> str:
    late = row["first_p99"]
    return f"{row['cached']:.2f} / {row['first_p50']:.2f} / {late:.{0 if late >= 10 else 1}f}"


def rates_table(results: report.Json) -> str:
    """Of 10 engines, by new chats a second and engine: cached, first token median and 99 %."""
    rows = [row for row in results["runs"] if row["engines"] == min(SIZES)]
    rates = sorted({row["rate"] for row in rows})
    cells = {(row["policy"], row["rate"]): _cell(row) for row in rows}
    body = ([name, *(cells.get((name, rate), "") for rate in rates)] for name in POLICIES)
    return report.markdown(["new chats a second and engine", *(f"{r:.2f}" for r in rates)], body)


def sizes_table(results: report.Json) -> str:
    """At one rate by number of engines and seconds; the busiest engine besides."""
    rows = [row for row in results["runs"] if row["rate"] == 0.25]
    columns = sorted({(row["engines"], row["seconds"]) for row in rows}, key=_longest_first)
    cells = {
        (row["policy"], row["engines"], row["seconds"]): f"{_cell(row)} / {row['busiest']:.2f}"
        for row in rows
    }
    head = [f"{engines:,} engines, {seconds:.0f} s" for engines, seconds in columns]
    body = ([name, *(cells.get((name, *column), "") for column in columns)] for name in POLICIES)
    return report.markdown(["", *head], body)


def _longest_first(column: tuple[int, float]) -> tuple[int, float]:
    return column[0], -column[1]


def index_table(results: report.Json) -> str:
    """What a full index costs."""
    rows = [
        [
            f"{cost['engines']:,} engines, the last {cost['remember']:,} blocks of each",
            f"{report.number(cost['memory_bytes'] / 2**20)} MiB",
            f"{cost['choose_s'] * 1000:.2f} ms",
        ]
        for cost in results["index"]
    ]
    return report.markdown(["", "memory", "time to choose"], rows)


def first_table(results: report.Json) -> str:
    """What is fullest, for each setup and size."""
    rows = []
    for limit in results["limits"]:
        fullest = (max(share.items(), key=_share) for share in limit["shares"].values())
        cells = [f"{part} {share:.2f}" for part, share in fullest]
        ends = [(at, part) for part, at in limit["full_at"].items() if at]
        engines, part = min(ends)
        rows.append([limit["setup"], *cells, f"{part} at {engines:,}"])
    head = [f"{int(size):,} engines" for size in results["limits"][0]["shares"]]
    return report.markdown(["fullest part", *head, "the first that is full"], rows)


def _share(item: tuple[str, float]) -> float:
    return item[1]


def limits_table(results: report.Json, setup: str) -> str:
    """How full each part is in one setup, and with how many engines it is full."""
    limit = next(each for each in results["limits"] if each["setup"] == setup)
    rows = []
    for part in PARTS:
        cells = [f"{share[part]:.2f}" for share in limit["shares"].values()]
        at = limit["full_at"][part]
        rows.append([part, *cells, f"{at:,}" if at else "never"])
    head = [f"{int(size):,} engines" for size in limit["shares"]]
    return report.markdown([setup, *head, "full at"], rows)


def tables(results: report.Json) -> Mapping[str, str]:
    """All tables of a results file, by the name in the markers of the documentation."""
    names = list(SETUPS)
    return {
        "rates": rates_table(results),
        "sizes": sizes_table(results),
        "index": index_table(results),
        "first": first_table(results),
        "one front": limits_table(results, names[0]),
        "many fronts": limits_table(results, names[-1]),
    }


def with_tables(text: str, results: report.Json) -> str:
    """A document with the tables between its markers; ValueError if one is not there."""
    for name, table in tables(results).items():
        begin, end = f"<!-- table: {name} -->", "<!-- end of table -->"
        before, found, after = text.partition(begin)
        _, ended, after = after.partition(end)
        if not (found and ended):
            raise ValueError(f"no {begin} and {end} in the document")
        text = f"{before}{begin}\n\n{table}\n\n{end}{after}"
    return text


def measured(plans: Sequence[Plan], sizes: Sequence[int], processes: int) -> report.Json:
    """All results: first the indexes, which are timed, then the simulations."""
    index = measured_indexes(sizes)
    costs, load = Costs(), Load()
    return {
        **report.machine(),
        "python": platform.python_version(),
        "machine": asdict(Machine()),
        "costs": asdict(costs),
        "load": asdict(load),
        "index": [asdict(cost) for cost in index],
        "limits": limits(index, sizes, costs, load),
        "runs": list(simulated(plans, processes)),
    }


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engines", default=",".join(map(str, SIZES)))
    parser.add_argument("--policies", help="of the plans', separated by ';'; default: all")
    parser.add_argument("--seconds", type=float, help="simulated, instead of the plans'")
    parser.add_argument("--processes", type=int, default=report.usable_cores())
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--print", action="store_true", help="the results of --output again")
    parser.add_argument("--into", type=Path, help="put the tables between that file's markers")
    options = parser.parse_args()
    if options.print:
        results = json.loads(options.output.read_text(encoding="utf-8"))
    else:
        sizes = [int(size) for size in options.engines.split(",")]
        plans = [_chosen(plan, options) for plan in PLANS if plan.engines in sizes]
        results = measured(plans, sizes, options.processes)
        report.write(results, options.output)
    if options.into:
        text = options.into.read_text(encoding="utf-8")
        options.into.write_text(with_tables(text, results), encoding="utf-8")
    else:
        print("\n\n".join(tables(results).values()))


def _chosen(plan: Plan, options: argparse.Namespace) -> Plan:
    """With what was asked for instead of its own."""
    if options.policies:
        asked = options.policies.split(";")
        plan = replace(plan, policies=[name for name in plan.policies if name in asked])
    return replace(plan, seconds=options.seconds) if options.seconds else plan


if __name__ == "__main__":
    main()
