"""Draw the speeds of a results file: a row for each engine, tokens/s and tokens per CPU-second.

    benchmarks/.peers/tools/bin/python benchmarks/plot.py RESULTS.json PLOT.svg

`peers.py --plot PLOT.svg` runs it. This file stands alone: it needs only matplotlib.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import matplotlib as mpl  # type: ignore[import-not-found]

mpl.use("svg")
mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "enginebay", "font.size": 9})

from matplotlib import pyplot as plt  # noqa: E402 - the backend has to be chosen first
from matplotlib.axes import Axes  # type: ignore[import-not-found]  # noqa: E402

_COLOURS = {"enginebay": "#d9480f", "transformers": "#adb5bd", "llama-cpp-python": "#adb5bd"}
_OTHER, _LIMIT = "#495057", "#212529"
_KEYS = {"tokens_per_second": "tokens/s", "tokens_per_cpu_second": "tokens per CPU-second"}


def medians(bursts: list[dict[str, Any]], key: str) -> dict[int, float]:
    """The median over the rounds for each number of streams."""
    streams = sorted({burst["streams"] for burst in bursts})
    return {n: statistics.median(b[key] for b in bursts if b["streams"] == n) for n in streams}


def draw(axes: Axes, measured: dict[str, Any], key: str) -> None:
    """Bars of the servers side by side, the limit as a line above them."""
    servers = measured["bursts"]
    width = 0.8 / max(len(servers), 1)
    streams = sorted({b["streams"] for bursts in servers.values() for b in bursts})
    for number, (name, bursts) in enumerate(servers.items()):
        speeds = medians(bursts, key)
        places = [streams.index(n) + (number - (len(servers) - 1) / 2) * width for n in speeds]
        colour = _COLOURS.get("enginebay" if name.startswith("enginebay") else name, _OTHER)
        axes.bar(places, list(speeds.values()), width * 0.92, label=name, color=colour)
    for name, bursts in measured["limits"].items():
        for n, speed in medians(bursts, key).items():
            left = streams.index(n) - 0.42
            label = name if n == streams[0] else None
            axes.plot([left, left + 0.84], [speed, speed], color=_LIMIT, lw=1, ls=":", label=label)
    axes.set_xticks(range(len(streams)), [str(n) for n in streams])
    axes.set_xlabel("streams")
    axes.set_title(_KEYS[key], loc="left")
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("plot", type=Path)
    args = parser.parse_args()
    results = json.loads(args.results.read_text(encoding="utf-8"))
    engines = results["engines"]
    figure, rows = plt.subplots(
        len(engines), 2, figsize=(10, 3 * len(engines)), squeeze=False, layout="constrained"
    )
    for row, measured in zip(rows, engines.values(), strict=True):
        for axes, key in zip(row, _KEYS, strict=True):
            draw(axes, measured, key)
        row[1].legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    machine = f"{results['cpu']}, {results['threads']} threads, {results['date']}"
    figure.suptitle(f"Model {results['model']}; {machine}", x=0.01, ha="left", fontsize=9)
    figure.savefig(args.plot, metadata={"Date": None})


if __name__ == "__main__":
    main()
