"""Results: the JSON file, and the tables that are printed of it."""

import argparse
import datetime
import json
import os
import platform
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Json = dict[str, Any]


def machine() -> Json:
    """What the numbers were measured on."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cpu": _cpu_info("model name") or platform.processor() or platform.machine(),
        "cores": usable_cores(),
        "system": f"{platform.system()} {platform.release()}",
    }


def usable_cores() -> int:
    """Logical cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def has_bfloat16() -> bool:
    """Whether the CPU multiplies bfloat16 in hardware."""
    return bool({"avx512_bf16", "amx_bf16"}.intersection(_cpu_info("flags").split()))


def _cpu_info(key: str) -> str:
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")


def write(results: Json, file: Path) -> None:
    """Write the results as JSON."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def tables(results: Json) -> str:
    """Markdown tables of the results of every engine."""
    parts = []
    for engine, measured in results["engines"].items():
        parts += [f"## {engine}: {results['model']}, {results['threads']} threads\n"]
        parts += [_load_table(engine, measured), _scenario_table(measured["scenarios"])]
        busy = max(
            (b["other_cores"] for bursts in measured["bursts"].values() for b in bursts), default=0
        )
        parts += [f"\nOther programs used up to {busy:.1f} cores meanwhile."] if busy > 0.2 else []
        errors = [f"{peer}: {text}" for peer, text in measured["errors"].items()]
        parts += [f"\n{len(errors)} failed:\n\n" + "\n\n".join(errors)] if errors else []
    return "\n".join(parts)


def speeds(measured: Json, name: str, key: str) -> dict[int, list[float]]:
    """The rounds' values of `key` for each number of streams, of a server or a limit."""
    values: dict[int, list[float]] = {}
    for burst in measured["bursts"].get(name, []) + measured["limits"].get(name, []):
        values.setdefault(burst["streams"], []).append(burst[key])
    return values


def _load_table(engine: str, measured: Json) -> str:
    """One row for each server and number of streams: medians of the rounds."""
    ours = f"enginebay-{engine}"
    rows = []
    for name in [*measured["bursts"], *measured["limits"]]:
        for streams, per_second in speeds(measured, name, "tokens_per_second").items():
            per_cpu = speeds(measured, name, "tokens_per_cpu_second")
            cells = [
                name,
                str(streams),
                number(statistics.median(per_second)),
                number(statistics.median(per_cpu[streams])),
                _ratio(measured, ours, name, streams, "tokens_per_second"),
                _ratio(measured, ours, name, streams, "tokens_per_cpu_second"),
                *_latencies(measured["bursts"].get(name, []), streams),
            ]
            rows.append((streams, cells))
    rows.sort(key=lambda row: row[0])
    head = ["", "streams", "tokens/s", "tokens/CPU-s", "Enginebay ×", "per CPU-s ×"]
    latencies = ["TTFT p50 ms", "p99", "inter-token p50 ms", "p99"]
    return markdown([*head, *latencies], (cells for _, cells in rows))


def _ratio(measured: Json, ours: str, name: str, streams: int, key: str) -> str:
    """How many times as fast Enginebay is: the median of the rounds' ratios."""
    own = speeds(measured, ours, key).get(streams, [])
    other = speeds(measured, name, key)[streams]
    if name == ours or len(own) != len(other):
        return ""
    return f"{statistics.median(a / b for a, b in zip(own, other, strict=True)):.2f}"


def _latencies(bursts: list[Json], streams: int) -> list[str]:
    mine = [burst for burst in bursts if burst["streams"] == streams]
    return [
        number(statistics.median(burst[what][which] for burst in mine)) if mine else ""
        for what in ("ttft_ms", "inter_token_ms")
        for which in ("p50", "p99")
    ]


def _scenario_table(scenarios: dict[str, dict[str, list[Json]]]) -> str:
    """One row for each server: medians of the rounds."""
    columns: dict[str, Callable[[Json], str]] = {
        "800 tokens TTFT ms": lambda s: _median(s["repeated_prompt"], "first_ms"),
        "the same again ms": lambda s: _median(s["repeated_prompt"], "again_ms"),
        "ratio": lambda s: _median(s["repeated_prompt"], "ratio"),
        "gap of 4 streams ms": lambda s: _median(s["long_prompt"], "median_gap_before_ms"),
        "worst, long prompt ms": lambda s: _median(s["long_prompt"], "worst_gap_ms"),
        "its tokens": lambda s: _median(s["long_prompt"], "prompt_tokens"),
        "its TTFT ms": lambda s: _median(s["long_prompt"], "long_prompt_ttft_ms"),
    }
    rows = ([name, *(cell(s) for cell in columns.values())] for name, s in scenarios.items())
    return "\n" + markdown(["", *columns], rows) if scenarios else ""


def _median(values: list[Json], key: str) -> str:
    return number(statistics.median(value[key] for value in values)) if values else ""


def number(value: float) -> str:
    """Three digits that matter."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def markdown(head: list[str], rows: Iterable[list[str]]) -> str:
    """A table, its first column of words and the others of numbers."""
    lines = [head, ["---"] + ["--:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    """Print the tables of a results file."""
    parser = argparse.ArgumentParser(description="Print the tables of a results file.")
    parser.add_argument("results", type=Path)
    print(tables(json.loads(parser.parse_args().results.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
