"""The tests of one engine, in a process of their own, and what came of them."""

import collections
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.engines import REHEARSAL, Device
from benchmarks.gpu.recording import Line, read

ROOT = Path(__file__).resolve().parents[2]
TESTS = ("tests/gpu", "tests/test_constrained_answers.py", "tests/backends/test_hf_engine.py")
"""Where tests are marked `gpu`; others may need what a GPU machine lacks only to be imported."""

_PATIENCE = 60
"""Seconds that pytest has to end when it is told to."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What came of an engine's tests; `trouble` is why they did not all run, if so."""

    lines: list[Line]
    trouble: str | None = None

    @property
    def good(self) -> bool:
        """Whether all ran that could, and none failed; where all were skipped nothing is good."""
        counts = self.counts()
        return not (self.trouble or counts["failed"]) and counts["passed"] > 0

    def counts(self) -> dict[str, int]:
        """How many passed, failed and were skipped."""
        found = collections.Counter(line["outcome"] for line in self.lines)
        return {outcome: found[outcome] for outcome in ("passed", "failed", "skipped")}

    def as_json(self) -> dict[str, Any]:
        """For the results file."""
        return {**self.counts(), "trouble": self.trouble, "tests": self.lines}


def run(engine: str, device: Device, limit: float, chosen: str | None = None) -> Checked:
    """Run the tests marked `gpu` and with this engine; `limit` seconds at most.

    `chosen` is what pytest's `-k` takes. Its output goes to the terminal.
    """
    paths = TESTS if device == "cuda" else TESTS[:1]  # the others have no rehearsal
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "lines"
        command = [sys.executable, "-m", "pytest", "-p", "pytest_asyncio.plugin"]
        command += ["-p", "_hypothesis_pytestplugin", "-p", "benchmarks.gpu.recording"]
        command += ["--record", str(file), "-m", f"gpu and {engine}", "-rs", "--thorough"]
        command += ["--continue-on-collection-errors", *paths]
        command += ["-k", chosen] if chosen else []
        environment = os.environ | ({REHEARSAL: "1"} if device == "cpu" else {})
        # Plugins of other projects on the machine have their own ideas of warnings.
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, (str(ROOT), environment.get("PYTHONPATH")))
        )
        with subprocess.Popen(command, cwd=ROOT, env=environment) as process:
            code = _wait(process, limit)
        lines = read(file)
    return Checked(lines, _trouble(code, limit))


def _wait(process: "subprocess.Popen[bytes]", limit: float) -> int | None:
    """The exit code, or None when time was up."""
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        if os.name == "nt":
            process.terminate()
        else:
            process.send_signal(signal.SIGINT)  # pytest ends the test, and says where it was
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
    return None


def _trouble(code: int | None, limit: float) -> str | None:
    if code is None:
        return f"cut off after {limit:g} seconds"
    if code < 0:
        return f"pytest was ended by {signal.Signals(-code).name}"
    return {0: None, 1: None, 5: "there were no tests"}.get(code, f"pytest ended with code {code}")
