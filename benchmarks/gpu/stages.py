"""The stages of the GPU check: their order, their time, and the verdict of each."""

import math
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.gpu import checks
from benchmarks.gpu.engines import Device
from benchmarks.gpu.processes import Ended
from benchmarks.gpu.recording import Line

Kind = Literal["facts", "first", "model", "throughput", "full"]
KINDS: tuple[Kind, ...] = ("facts", "first", "model", "throughput", "full")
Status = Literal["passed", "failed", "crashed", "timed out", "cut off", "skipped", "not run"]
"""`timed out` is at the stage's own limit, `cut off` at the end of the budget. A stage that is
`skipped` cannot run on this machine; one that is `not run` had no time."""

FULL: dict[str, tuple[str, ...]] = {
    "hf": ("hf-bfloat16", "hf-float32", "hf-float16", "hf-prompt-lookup"),
    "llamacpp": ("llamacpp", "llamacpp-prompt-lookup", "llamacpp-q8-cache"),
    "exllamav2": (
        "exllamav2",
        "exllamav2-gptq",
        "exllamav2-unpaged",
        "exllamav2-q8-cache",
        "exllamav2-q6-cache",
        "exllamav2-q4-cache",
        "exllamav2-prompt-lookup",
        "exllamav2-draft-model",
        "exllamav2-torch-attention",
    ),
}
"""The targets of `tests.gpu.targets` in the order in which they are checked in full."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the check that runs as one process.

    `command` is made from the file for the stage's lines, a file with the lines of an earlier run
    that was not finished, and the seconds that the stage may take. `least` is the time without
    which it is not started, `limit` the time after which it is killed, both in seconds.
    """

    name: str
    kind: Kind
    engine: str | None
    least: float
    limit: float
    command: Callable[[Path, Path, float], list[str]]


@dataclass(frozen=True, slots=True)
class Verdict:
    status: Status
    reason: str = ""


def plan(
    engines: Sequence[str], device: Device, model: str, kinds: Sequence[Kind] = KINDS
) -> list[Stage]:
    """All stages in order; the engines take turns, so that none waits for all of another."""
    made = [Stage("facts", "facts", None, 5, 30, _module("machine", "--device", device))]
    made += [
        Stage(f"{engine} first", "first", engine, 15, 80, _first(engine)) for engine in engines
    ]
    served = [engine for engine in engines if device == "cuda" or engine != "exllamav2"]
    common = ("--device", device, "--model", model)
    if served:
        making = _module("throughput", *common)
        made.append(Stage("model", "model", None, 20, 120, making))
    made += [
        Stage(
            f"{engine} throughput",
            "throughput",
            engine,
            35,
            100,
            _module("throughput", *common, "--engine", engine),
        )
        for engine in served
    ]
    limit = 240 if device == "cuda" else 900
    lists = [
        [
            Stage(f"{engine} full: {target or 'the rest'}", "full", engine, 25, limit, full)
            for target in (*FULL[engine], "")
            for full in [_full(engine, target, device)]
        ]
        for engine in engines
    ]
    for turn in range(max(map(len, lists), default=0)):
        made += [stages[turn] for stages in lists if turn < len(stages)]
    return [stage for stage in made if stage.kind in ("facts", *kinds)]


def _module(name: str, *arguments: str) -> Callable[[Path, Path, float], list[str]]:
    def command(record: Path, _: Path, seconds: float) -> list[str]:
        python = [sys.executable, "-m", f"benchmarks.gpu.{name}", *arguments]
        given = ["--seconds", f"{seconds:.0f}"] if math.isfinite(seconds) else []
        return [*python, "--record", str(record), *given]

    return command


def _first(engine: str) -> Callable[[Path, Path, float], list[str]]:
    def command(record: Path, passed: Path, _: float) -> list[str]:
        return checks.command(record, engine, checks.FIRST, passed=passed)

    return command


def _full(engine: str, target: str, device: Device) -> Callable[[Path, Path, float], list[str]]:
    paths = checks.TESTS if device == "cuda" else checks.TESTS[:1]  # others have no rehearsal

    def command(record: Path, passed: Path, _: float) -> list[str]:
        made = checks.command(record, engine, *paths, target=target, passed=passed)
        return [*made, f"--ignore={checks.FIRST}"]

    return command


def judge(ended: Ended, lines: Sequence[Line], limit: float, *, cut: bool) -> Verdict:
    """What came of a stage; `cut` is whether it had less time than its own limit."""
    if ended.code is None:
        what = f"was killed after {limit:.0f} s"
        return Verdict("cut off" if cut else "timed out", _last(what, lines))
    if ended.code < 0:
        return Verdict("crashed", _last(f"ended by {_signal(-ended.code)}", lines))
    if ended.code not in (0, 1, 5):  # 1: a test failed; 5: there were none
        return Verdict("crashed", _last(f"ended with code {ended.code}", lines))
    failed = [line for line in lines if line["outcome"] == "failed"]
    if failed or (ended.code == 1 and not lines):
        first = failed[0]["reason"].partition("\n")[0] if failed else "wrote nothing down"
        return Verdict("failed", f"{len(failed)} failed, the first: {first}" if failed else first)
    if any(line["outcome"] == "passed" for line in lines):
        return Verdict("passed")
    return Verdict("skipped", lines[0]["reason"] if lines else "there were no tests")


def _last(what: str, lines: Sequence[Line]) -> str:
    return f"{what}, after {lines[-1]['test']}" if lines else f"{what}, before the first test ended"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
