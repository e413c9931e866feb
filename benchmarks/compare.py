"""Has Enginebay become slower? Two result files of `peers.py`, or of `overhead.py`, compared.

    python3 start.py python benchmarks/compare.py benchmarks/results/overhead.json new.json

Machines differ, and so does what else they do. So only ratios are compared that were measured side
by side in one round: to each other server and limit, to the bare app, to an undisturbed step. Each
is such that more is better. One is worse if its median has lost more than `--tolerance`, and no
round reached the old median. Exits with 1 if any is.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks import report

Ratios = Mapping[str, Sequence[float]]
"""The rounds' values of each ratio, by what it is of."""


def ratios(results: report.Json) -> Ratios:
    """All ratios of a results file."""
    return dict(_of_layer(results) if "measured" in results else _of_engines(results))


def _of_layer(results: report.Json) -> Iterator[tuple[str, list[float]]]:
    """Of `overhead.py`: the bare app's CPU time to Enginebay's, in step."""
    rounds: dict[tuple[str, int], dict[str, list[float]]] = {}
    for entry in results["measured"]:
        servers = rounds.setdefault((entry["mode"], entry["streams"]), {})
        servers.setdefault(entry["server"], []).append(entry["cpu_ms_per_1000_tokens"])
    for (mode, streams), cpu in rounds.items():
        if pairs := list(zip(cpu.get("bare", ()), cpu.get("in step", ()), strict=False)):
            yield f"{mode}, {streams} streams, CPU: bare", [bare / ours for bare, ours in pairs]


def _of_engines(results: report.Json) -> Iterator[tuple[str, list[float]]]:
    """Of `peers.py`: Enginebay's speed to each other's, and how even its own is."""
    for engine, measured in results["engines"].items():
        ours = f"enginebay-{engine}"
        for other in [*measured["bursts"], *measured["limits"]]:
            for key in ("tokens_per_second", "tokens_per_cpu_second"):
                own = report.speeds(measured, ours, key)
                for streams, values in report.speeds(measured, other, key).items():
                    if other != ours and len(own.get(streams, ())) == len(values):
                        pairs = zip(own[streams], values, strict=True)
                        name = f"{results['model']}, {engine}, {streams} streams, {key}: {other}"
                        yield name, [a / b for a, b in pairs]
        seen = measured["scenarios"].get(ours, {})
        prefix = f"{results['model']}, {engine}"
        if again := seen.get("repeated_prompt"):
            yield f"{prefix}: a prompt again", [1 / each["ratio"] for each in again]
        if long := seen.get("long_prompt"):
            gaps = [each["median_gap_before_ms"] / each["worst_gap_ms"] for each in long]
            yield f"{prefix}: a step beside a long prompt", gaps
        kept: dict[str, list[float]] = {}
        for row in seen.get("conversations", ()):
            name = f"{prefix}: the last turn of {row['chats']} chats"
            kept.setdefault(name, []).append(row["ttft_ms"][0] / row["ttft_ms"][-1])
        for row in seen.get("constrained", ()):
            name = f"{prefix}: a JSON schema, {row['streams']} streams"
            kept.setdefault(name, []).append(row["ratio"])
        yield from kept.items()


def is_worse(old: Sequence[float], new: Sequence[float], tolerance: float) -> bool:
    """Whether the rounds of a ratio have become worse than noise explains."""
    before = statistics.median(old)
    return statistics.median(new) < before * (1 - tolerance) and max(new) < before


def compared(old: Ratios, new: Ratios, tolerance: float) -> tuple[str, list[str]]:
    """A Markdown table of the ratios that both have, and which of them are worse."""
    rows, worse = [], []
    for name in (name for name in old if name in new):
        before, now = statistics.median(old[name]), statistics.median(new[name])
        if is_worse(old[name], new[name], tolerance):
            worse.append(name)
        mark = "worse" if name in worse else ""
        rows.append([name, f"{before:.3f}", f"{now:.3f}", f"{now / before:.2f}", mark])
    return report.markdown(["", "old", "new", "new / old", ""], rows), worse


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--tolerance", type=float, default=0.1, help="such as 0.1 for a tenth")
    options = parser.parse_args()
    old, new = (
        ratios(json.loads(file.read_text(encoding="utf-8"))) for file in (options.old, options.new)
    )
    if not set(old) & set(new):
        sys.exit("the files have no ratio in common: are they of the same benchmark and model?")
    table, worse = compared(old, new, options.tolerance)
    print(table)
    if worse:
        sys.exit("slower than before:\n" + "\n".join(worse))


if __name__ == "__main__":
    main()
