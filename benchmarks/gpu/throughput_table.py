"""The table of the throughput stages: medians of the rounds of each contender."""

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks import report
from benchmarks.gpu.recording import Line

Json = dict[str, Any]


def table(lines: Sequence[Line]) -> str:
    """Markdown; ratios are medians of the rounds' ratios, to the peer of the same engine."""
    bursts = [line["figures"] for line in lines if "streams" in line["figures"]]
    rows = []
    for engine, name, way, streams in dict.fromkeys(map(_key, bursts)):
        mine = [each for each in bursts if _key(each) == (engine, name, way, streams)]
        speeds = [each["tokens_per_second"] for each in mine]
        peers = [each for each in bursts if each["engine"] == engine and each["peer"]]
        ratios = [
            "" if mine[0]["peer"] else _ratio(speeds, peers, "free", streams, peer)
            for peer in dict.fromkeys(each["name"] for each in peers)
        ]
        others = [each for each in bursts if each["name"] == name]
        cells = [
            f"{name}, {way}",
            str(streams),
            report.number(statistics.median(speeds)),
            " / ".join(filter(None, ratios)),
            _ratio(speeds, others, "free", streams, name) if way != "free" else "",
            *(_latency(mine, what, which) for what in _LATENCIES for which in ("p50", "p99")),
        ]
        rows.append((engine, streams, cells))
    rows.sort(key=lambda row: row[:2])
    head = ["", "streams", "tokens/s", "× peer", "× free"]
    head += ["TTFT p50 ms", "p99", "inter-token p50 ms", "p99"]
    return report.markdown(head, (cells for *_, cells in rows))


_LATENCIES = ("ttft_ms", "inter_token_ms")


def _key(burst: Json) -> tuple[str, str, str, int]:
    return burst["engine"], burst["name"], burst["way"], burst["streams"]


def _ratio(speeds: list[float], bursts: list[Json], way: str, streams: int, name: str) -> str:
    others = [
        each["tokens_per_second"]
        for each in bursts
        if (each["name"], each["way"], each["streams"]) == (name, way, streams)
    ]
    pairs = list(zip(speeds, others, strict=False))
    return f"{statistics.median(a / b for a, b in pairs):.2f}" if pairs else ""


def _latency(bursts: list[Json], what: str, which: str) -> str:
    found = [each[what][which] for each in bursts if what in each]
    return report.number(statistics.median(found)) if found else ""
