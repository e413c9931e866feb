"""Check every engine on this machine's GPU, and write down what came of it.

    python3 start.py python benchmarks/gpu/check.py
    python3 start.py python benchmarks/gpu/check.py --engines exllamav2 --only checks
    python3 start.py python benchmarks/gpu/check.py --rehearse      # all that works without a GPU

First the tests marked `gpu`, of one engine after another: the contract, texts and logprobs beside
transformers in float32 on the CPU, structured output, load, aborts, adapters, memory. Then the
throughput of all of them in turn. Engines that are not installed are skipped, with the reason. What
is known so far is written after every part, so a run that is cut off leaves what it found. The exit
code is 1 if a check failed, did not end or crashed, or if there was nothing to check.
"""

import argparse
import asyncio
import re
import sys
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.environments import FOLDER
from benchmarks.gpu import checks, machine, throughput
from benchmarks.gpu.engines import ENGINES, Device, can_serve, missing

Json = dict[str, Any]
RESULTS = Path(__file__).resolve().parents[1] / "results"
PARTS = ("checks", "throughput")


def output_file(devices: list[Json], device: Device) -> Path:
    """`results/gpu-DEVICE.json`; a rehearsal is no result and lies elsewhere."""
    if device == "cpu":
        return FOLDER / "gpu-rehearsal.json"
    name = devices[0]["name"] if devices else "none"
    return RESULTS / f"gpu-{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')}.json"


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engines", default=",".join(ENGINES), help="of hf,llamacpp,exllamav2")
    parser.add_argument("--only", choices=PARTS, help="one of the two parts")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, without results")
    parser.add_argument("--tests", metavar="EXPRESSION", help="only these tests, as pytest -k")
    parser.add_argument("--limit", type=float, default=900, help="seconds for an engine's tests")
    parser.add_argument("--model", help="demo, 100m, 1b or a Llama's folder [1b; demo to rehearse]")
    parser.add_argument("--streams", default="1,8,32", help="requests at a time")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128, help="of each answer")
    parser.add_argument("--output", type=Path, help="results file [results/gpu-DEVICE.json]")
    options = parser.parse_args(arguments)
    options.engines = options.engines.split(",")
    if unknown := set(options.engines) - set(ENGINES):
        parser.error(f"no such engine: {', '.join(sorted(unknown))}")
    options.streams = [int(streams) for streams in options.streams.split(",")]
    return options


def main(arguments: list[str]) -> int:
    """The exit code."""
    options = parse(arguments)
    device: Device = "cpu" if options.rehearse else "cuda"
    devices = machine.devices()
    output = options.output or output_file(devices, device)
    results: Json = {
        "machine": report.machine() | {"devices": devices},
        "versions": machine.versions(),
        "imports": machine.imports(),
        "rehearsal": options.rehearse,
        "engines": {},
    }
    able = []
    for engine in options.engines:
        if reason := missing(engine, device):
            results["engines"][engine] = {"missing": reason}
        else:
            able.append(engine)
    if able and options.only != "throughput":
        for engine in able:
            checked = checks.run(engine, device, options.limit, options.tests)
            results["engines"][engine] = checked.as_json() | {"good": checked.good}
            report.write(results, output)
    if able and options.only != "checks":
        model = throughput.find_model(options.model or ("demo", "1b")[device == "cuda"], device)
        plan = throughput.Plan(options.streams, options.rounds, options.tokens)
        served = [engine for engine in able if can_serve(engine, device)]
        measured = asyncio.run(throughput.measure(served, device, model, plan))
        results["throughput"] = measured
        report.write(results, output)
    print(summary(results))
    if able:
        print(f"\nAll of it: {output}")
    return exit_code(results)


def exit_code(results: Json) -> int:
    """1 if anything failed, or if nothing was checked."""
    checked = [each for each in results["engines"].values() if "missing" not in each]
    measured = results.get("throughput", {"bursts": {}, "errors": {}})
    failed = measured["errors"] or not all(each.get("good", True) for each in checked)
    return int(bool(failed) or not (checked or measured["bursts"]))


def summary(results: Json) -> str:
    """The tables, and every failure with its words."""
    rows, failures = [], []
    for engine, found in results["engines"].items():
        if "missing" in found:
            rows.append([f"{engine}: {found['missing']}", "", "", ""])
            continue
        rows.append([engine, *(str(found[key]) for key in ("passed", "failed", "skipped"))])
        failures += [f"{engine}: {found['trouble']}"] if found["trouble"] else []
        failures += [
            f"{line['test']}\n{line['reason']}"
            for line in found["tests"]
            if line["outcome"] == "failed"
        ]
    devices = ", ".join(each["name"] for each in results["machine"]["devices"]) or "no GPU"
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    broken = [f"{name}: {words}" for name, words in results["imports"].items() if words != "ok"]
    parts = [
        f"\n{'Rehearsal on the CPU' if results['rehearsal'] else devices}; {versions}",
        report.markdown(["checks", "passed", "failed", "skipped"], rows),
    ]
    parts += ["Libraries that do not import:", *broken] if broken else []
    if measured := results.get("throughput"):
        parts += [
            f"{measured['model']}, {measured['dtype']}, {measured['prompt_tokens']} prompt and "
            f"{measured['tokens']} completion tokens:",
            throughput.table(measured),
        ]
        failures += [f"{name}: {error}" for name, error in measured["errors"].items()]
    parts += [f"{len(failures)} failed:", *failures] if failures else []
    return "\n\n".join(parts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
