"""Results: the JSON file, and the tables that are printed of it.

python benchmarks/report.py benchmarks/results/100m.json
python benchmarks/report.py --summary benchmarks/results/100m.json benchmarks/results/layer.json
python benchmarks/report.py --summary ... --into docs/internals/benchmarks.md
python benchmarks/report.py --drafts benchmarks/results/speculation-hf.json ... --into ...
"""

import argparse
import datetime
import json
import os
import platform
import statistics
from collections.abc import Callable, Iterable, Sequence
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


def instructions() -> list[str]:
    """The vector instructions that libraries may use, as far as /proc/cpuinfo and limits say."""
    names = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "asimd")
    flags = {*_cpu_info("flags").split(), *_cpu_info("Features").split()}
    limits = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
    limited = [f"{name}={os.environ[name]}" for name in limits if name in os.environ]
    return [name for name in names if name in flags] + limited


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
        parts += [_load_table(engine, measured), _scenario_tables(measured["scenarios"])]
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


def _scenario_tables(scenarios: dict[str, dict[str, list[Json]]]) -> str:
    """Those that were measured, with one row for each server: medians of the rounds."""
    tables = [_latency_table(scenarios), _conversation_table(scenarios), _schema_table(scenarios)]
    return "".join(f"\n{table}\n" for table in tables if table)


def _latency_table(scenarios: dict[str, dict[str, list[Json]]]) -> str:
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
    return markdown(["", *columns], rows) if scenarios else ""


def _conversation_table(scenarios: dict[str, dict[str, list[Json]]]) -> str:
    """TTFT of each turn, and how many tokens of the last one's prompt were cached."""
    rows = []
    turns = 0
    for chats, name, seen in _by_number(scenarios, "conversations", "chats"):
        ttft = [statistics.median(values) for values in zip(*_all(seen, "ttft_ms"), strict=True)]
        turns = len(ttft)
        cached = [counts[-1] for counts in _all(seen, "cached_tokens") if counts]
        told = number(statistics.median(cached)) if cached else ""
        speed = _median(seen, "tokens_per_second")
        rows.append([name, str(chats), *map(number, ttft), told, speed])
    head = ["", "chats", *(f"turn {turn + 1} TTFT ms" for turn in range(turns))]
    return markdown([*head, "cached in the last", "tokens/s"], rows) if rows else ""


def _schema_table(scenarios: dict[str, dict[str, list[Json]]]) -> str:
    """The speed of answers that keep to a JSON schema beside others of the same round."""
    rows = [
        [name, str(streams), *(_median(seen, key) for key in ("free", "constrained", "ratio"))]
        for streams, name, seen in _by_number(scenarios, "constrained", "streams")
    ]
    return markdown(["", "streams", "free tokens/s", "JSON schema", "ratio"], rows) if rows else ""


def _by_number(
    scenarios: dict[str, dict[str, list[Json]]], scenario: str, key: str
) -> list[tuple[int, str, list[Json]]]:
    """The rounds of a scenario by a number that its rows have, and by server."""
    found: dict[tuple[int, str], list[Json]] = {}
    for name, seen in scenarios.items():
        for row in seen.get(scenario, ()):
            found.setdefault((row[key], name), []).append(row)
    return [(n, name, found[n, name]) for n, name in sorted(found, key=lambda pair: pair[0])]


def _all(rows: list[Json], key: str) -> list[Any]:
    return [row[key] for row in rows]


def _median(rows: list[Json], key: str) -> str:
    return number(statistics.median(_all(rows, key))) if rows else ""


def summary(files: Sequence[Path]) -> str:
    """A Markdown table of Enginebay's speed to each other server's and to the limits.

    By number of streams: the median of the rounds' ratios of tokens/s, in brackets per CPU-second.
    """
    found: dict[str, dict[int, str]] = {}
    for file in files:
        results: Json = json.loads(file.read_text(encoding="utf-8"))
        for engine, measured in results["engines"].items():
            ours = f"enginebay-{engine}"
            for name in [*measured["bursts"], *measured["limits"]]:
                row = f"{engine}, {results['model']}: {name}"
                for streams in speeds(measured, name, "tokens_per_second"):
                    per_second = _ratio(measured, ours, name, streams, "tokens_per_second")
                    per_cpu = _ratio(measured, ours, name, streams, "tokens_per_cpu_second")
                    if per_second:
                        found.setdefault(row, {})[streams] = f"{per_second} ({per_cpu})"
    columns = sorted({streams for cells in found.values() for streams in cells})
    rows = ([row, *(cells.get(n, "") for n in columns)] for row, cells in found.items())
    return markdown(["Enginebay × / streams", *map(str, columns)], rows)


def drafts(files: Sequence[Path]) -> str:
    """A Markdown table of tokens/s with drafts to those without (`speculation.py`).

    By number of streams: the median of the rounds' ratios, in brackets the least and the largest.
    """
    found: dict[str, dict[int, str]] = {}
    for file in files:
        results: Json = json.loads(file.read_text(encoding="utf-8"))
        for row in results["measured"]:
            ratios = row["ratios"]
            cells = found.setdefault(f"{results['backend']}: {row['case']}", {})
            middle = statistics.median(ratios)
            cells[row["streams"]] = f"{middle:.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
    columns = sorted({streams for cells in found.values() for streams in cells})
    rows = ([row, *(cells.get(n, "") for n in columns)] for row, cells in found.items())
    return markdown(["with drafts × / streams", *map(str, columns)], rows)


TABLES: dict[str, Callable[[Sequence[Path]], str]] = {"summary": summary, "drafts": drafts}
"""Of the documentation, by the name in their markers."""


def with_table(kind: str, text: str, folder: Path, files: Sequence[str] = ()) -> str:
    """A document with one of `TABLES`, of these files of `folder`, between its markers.

    Without `files`: of those that it names now. Raises ValueError if it has no markers.
    """
    begin, end = f"<!-- {kind} of", f"<!-- end of {kind} -->"
    before, found, after = text.partition(begin)
    inside, ended, after = after.partition(end)
    if not (found and ended):
        raise ValueError(f"no {begin} FILES --> and {end} in the document")
    names = files or inside.partition("-->")[0].split()
    table = TABLES[kind]([folder / name for name in names])
    return f"{before}{begin} {' '.join(names)} -->\n\n{table}\n\n{end}{after}"


def number(value: float) -> str:
    """Three digits that matter."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def markdown(head: list[str], rows: Iterable[list[str]]) -> str:
    """A table, its first column of words and the others of numbers."""
    lines = [head, ["---"] + ["--:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--summary", action="store_true", help="one table of the ratios of all")
    parser.add_argument("--drafts", action="store_true", help="one table of speculation.py's files")
    parser.add_argument("--into", type=Path, help="put that table between that file's markers")
    options = parser.parse_args()
    kind = "drafts" if options.drafts else "summary"
    if options.into:
        folders = {file.parent for file in options.results}
        if len(folders) > 1:
            parser.error("--into takes results of one folder")
        text = options.into.read_text(encoding="utf-8")
        names = [file.name for file in options.results]
        options.into.write_text(with_table(kind, text, folders.pop(), names), encoding="utf-8")
    elif options.summary or options.drafts:
        print(TABLES[kind](options.results))
    else:
        for file in options.results:
            print(tables(json.loads(file.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
