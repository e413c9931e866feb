"""The results file: what came of each stage, written again whenever there is more to say."""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.gpu import throughput_table
from benchmarks.gpu.engines import ENGINES
from benchmarks.gpu.processes import ROOT
from benchmarks.gpu.recording import Line
from benchmarks.gpu.stages import Stage, Verdict

Json = dict[str, Any]
NAME = "gpu-check.json"
SOURCES = ("core", "backends", "parsers", "demo", "benchmarks/gpu", "tests/gpu")


class Results:
    """The stages of this run and of those before, in a file that is replaced as a whole."""

    def __init__(self, file: Path, before: Path | None = None, *, again: bool = False) -> None:
        """Go on from the file itself or, if it is not there, from `before`; not with `again`."""
        self.file = file
        self.stages: dict[str, Json] = {}
        self._about: Json = {}
        known = next((each for each in (file, before) if each and each.exists()), None)
        if known and not again:
            self.stages = json.loads(known.read_text("utf-8"))["stages"]

    def describe(self, **about: Any) -> None:
        """Write down what the check runs on."""
        self._about |= about
        self._write()

    def passed(self, stage: Stage, state: str) -> bool:
        """Whether the stage has passed before with the same code, versions and device."""
        return self._known(stage, state).get("status") == "passed"

    def lines(self, stage: Stage, state: str) -> list[Line]:
        """The tests that passed before, of a stage that was not finished."""
        found: list[Line] = self._known(stage, state).get("tests", [])
        return [line for line in found if line["outcome"] == "passed"]

    def tried(self, stage: Stage, state: str) -> bool:
        """Whether the stage had its time before, and did not pass."""
        return self._known(stage, state).get("status") in ("failed", "crashed", "timed out")

    def begin(self, stage: Stage, state: str, lines: Sequence[Line]) -> None:
        """A stage runs; `lines` are those so far. What a killed run leaves is `cut off`."""
        verdict = Verdict("cut off", "the run ended during this stage")
        self.end(stage, state, verdict, 0.0, lines, [])

    def end(
        self,
        stage: Stage,
        state: str,
        verdict: Verdict,
        seconds: float,
        lines: Sequence[Line],
        log: Sequence[str],
    ) -> None:
        """What came of a stage; of one that did not pass, with the last lines of its log."""
        self.stages[stage.name] = {
            "kind": stage.kind,
            "engine": stage.engine,
            "status": verdict.status,
            "reason": verdict.reason,
            "seconds": round(seconds, 1),
            "state": state,
            "tests": list(lines),
            "log": [] if verdict.status == "passed" else list(log),
        }
        self._write()

    def leave(self, stage: Stage, state: str, verdict: Verdict) -> None:
        """A stage that was not started; what an earlier run found out about it stays."""
        if not self._known(stage, state):
            self.end(stage, state, verdict, 0.0, [], [])

    def _known(self, stage: Stage, state: str) -> Json:
        found = self.stages.get(stage.name, {})
        return found if found.get("state") == state else {}

    def _write(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.file.with_suffix(".tmp")
        content = json.dumps({**self._about, "stages": self.stages}, indent=1) + "\n"
        unfinished.write_text(content, encoding="utf-8")
        unfinished.replace(self.file)


def state(engine: str | None, about: Json, root: Path = ROOT) -> str:
    """A digest of all that a stage's verdict depends on: the code of its engine and of what all
    engines share, and what the check runs on.
    """
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    others = {f"backends/enginebay_{other}/" for other in ENGINES if other != engine}
    for folder in SOURCES:
        for file in sorted((root / folder).rglob("*")):
            name = file.relative_to(root).as_posix()
            counts = file.suffix in (".py", ".jinja", ".safetensors")
            if counts and not any(name.startswith(other) for other in others):
                digest.update(name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def summary(stages: dict[str, Json], names: Sequence[str]) -> str:
    """The tables, and every failure with its words; of these stages."""
    rows, failures, measured = [], [], []
    for name in names:
        found = stages[name]
        counts = [
            str(sum(line["outcome"] == outcome for line in found["tests"]))
            for outcome in ("passed", "failed", "skipped")
        ]
        why = found["reason"] if found["status"] in ("skipped", "not run") else ""
        status = f"{found['status']}: {why}" if why else found["status"]
        rows.append([name, status, *counts, f"{found['seconds']:.1f}"])
        failures += _failures(name, found)
        if found["kind"] == "throughput":
            measured += found["tests"]
    head = ["stage", "status", "passed", "failed", "skipped", "seconds"]
    parts = [report.markdown(head, rows)]
    parts += [throughput_table.table(measured)] if measured else []
    parts += [f"{len(failures)} went wrong:", *failures] if failures else []
    return "\n\n".join(parts)


def _failures(name: str, found: Json) -> list[str]:
    if found["status"] not in ("failed", "crashed", "timed out", "cut off"):
        return []
    failed = [line for line in found["tests"] if line["outcome"] == "failed"]
    said = [f"{name}: {line['test']}\n{line['reason']}" for line in failed]
    ended = [] if found["status"] == "failed" and said else [f"{name}: {found['reason']}"]
    log = [os.linesep.join(found["log"][-8:])] if ended and found["log"] else []
    return [*said, *ended, *log]


def exit_code(stages: dict[str, Json], names: Sequence[str]) -> int:
    """1 if a stage failed, crashed or timed out, or if no engine passed anything."""
    found = [stages[name] for name in names]
    wrong = any(each["status"] in ("failed", "crashed", "timed out") for each in found)
    return int(wrong or not any(each["engine"] and each["status"] == "passed" for each in found))
