"""Which grammar engine is the better one: llguidance or xgrammar?

    python3 start.py python benchmarks/grammar_engines.py

Both compile the same JSON schemas and fill masks for the same documents, and both are asked which
documents of the JSON Schema test suite they accept.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks import report
from benchmarks.grammar_engines_adapters import Engine, Json, PlainLlguidance, engines
from benchmarks.grammar_engines_coverage import coverage
from benchmarks.grammar_engines_schemas import SAMPLES
from benchmarks.grammar_engines_speed import speed
from tests.schema_suite import fetch

RESULTS = Path(__file__).parent / "results" / "grammar-engines.json"
_VERDICTS = ("right", "too_strict", "unsound", "refused")


def compare(kinds: Sequence[type[Engine]], rounds: int) -> Json:
    """Everything about these engines; a variant that differs in what it accepts has no speed."""
    fetch()
    covered = {kind.name: coverage(kind) for kind in kinds}
    timed = [kind for kind in kinds if kind is not PlainLlguidance]
    return {
        "machine": report.machine(),
        "versions": {kind.package: kind.version() for kind in kinds},
        "coverage": covered,
        "speed": speed(timed, rounds),
    }


def tables(results: Json) -> str:
    """The results as Markdown."""
    parts = {
        "Compiling": _compile_table(results["speed"]),
        "Masks": _mask_table(results["speed"]),
        "Free text, then a call": _trigger_table(results["speed"]),
        "JSON Schema test suite": _suite_table(results["coverage"], "suite"),
        "The same, with the document's type in schemas without one": _suite_table(
            results["coverage"], "typed"
        ),
        "Formats": _suite_table(results["coverage"], "formats"),
        "Random documents": _random_table(results["coverage"]),
        "Documents that are not valid": _trap_table(results["coverage"]),
    }
    return "\n\n".join(f"### {title}\n\n{table}" for title, table in parts.items())


def _compile_table(speeds: Json) -> str:
    head = ["", "vocabulary", "build ms"]
    for sample in SAMPLES:
        head += [f"{sample.name} ms", "CPU ms", "again µs"]
    rows = []
    for name, vocabulary, engine, times in _engines(speeds):
        row = [engine, f"{name}, {vocabulary:,}", report.number(times["build_ms"])]
        for sample in SAMPLES:
            cost = times[sample.name]
            times_ms = (cost["compile_ms"], cost["compile_cpu_ms"])
            row += map(report.number, (*times_ms, 1e3 * cost["cached_ms"]))
        rows.append(row)
    return report.markdown(head, rows)


def _mask_table(speeds: Json) -> str:
    head = ["", "vocabulary", "schema", "tokens", "first document µs", "median µs", "p99", "max"]
    rows = []
    for name, _, engine, times in _engines(speeds):
        for sample in SAMPLES:
            cost = times[sample.name]
            first = report.number(cost["first_us"]["mean"])
            what = [engine, name, sample.name, str(cost["tokens"]), first]
            rows.append([*what, *_spread(cost["mask_us"]), report.number(cost["mask_us"]["mean"])])
    return report.markdown([*head, "mean"], rows)


def _trigger_table(speeds: Json) -> str:
    head = ["", "vocabulary", "compile ms", "text median µs", "p99", "max"]
    rows = []
    for name, _, engine, times in _engines(speeds):
        cost = times["triggered"]
        row = [engine, name, report.number(cost["compile_ms"])]
        rows.append([*row, *_spread(cost["prose"]["mask_us"]), *_spread(cost["call"]["mask_us"])])
    return report.markdown([*head, "call median µs", "p99", "max"], rows)


def _engines(speeds: Json) -> Iterable[tuple[str, int, str, Json]]:
    for name, measured in speeds.items():
        for engine, times in measured["engines"].items():
            yield name, measured["size"], engine, times


def _spread(times: Json) -> list[str]:
    return [report.number(times[key]) for key in ("median", "p99", "max")]


def _suite_table(covered: Json, part: str) -> str:
    """Documents right / too strict / unsound / refused, of each keyword and all."""
    names = list(covered)
    keywords = list(covered[names[0]][part])
    rows = []
    for keyword in keywords:
        counts = [covered[name][part][keyword] for name in names]
        rows.append([keyword, *(_verdicts([count]) for count in counts)])
    rows.append(["**all**", *(_verdicts(covered[name][part].values()) for name in names)])
    return report.markdown(["right / too strict / unsound / refused", *names], rows)


def _verdicts(counts: Iterable[Json]) -> str:
    counts = list(counts)
    return " / ".join(str(sum(count[key] for count in counts)) for key in _VERDICTS)


def _random_table(covered: Json) -> str:
    rows = []
    for name, of in covered.items():
        walked = of["random"]
        invalid = sorted(walked["invalid"].items(), key=lambda item: -item[1])
        named = ", ".join(f"{keyword} {count}" for keyword, count in invalid)
        rows.append([name, f"{walked['documents']:,}", str(sum(walked["invalid"].values())), named])
    return report.markdown(["", "documents", "not valid", "by keyword"], rows)


def _trap_table(covered: Json) -> str:
    names = list(covered)
    traps = covered[names[0]]["traps"]
    rows = [[trap, *(covered[name]["traps"][trap] for name in names)] for trap in traps]
    return report.markdown(["", *names], rows)


def main() -> None:
    """Measure, print the tables and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9, help="how often a document is decoded")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--print", type=Path, help="only print the tables of these results")
    options = parser.parse_args()
    if options.print:
        results = json.loads(options.print.read_text(encoding="utf-8"))
    else:
        results = compare(engines(), options.rounds)
        report.write(results, options.output)
    print(tables(results))


if __name__ == "__main__":
    main()
