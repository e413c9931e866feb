"""The command that runs tests of one engine and records what came of each."""

import sys
from pathlib import Path

TESTS = ("tests/gpu", "tests/test_constrained_answers.py", "tests/backends/test_hf_engine.py")
"""Where tests are marked `gpu`; others may need what a GPU machine lacks only to be imported."""
FIRST = "tests/gpu/test_first.py"
"""The tests of the first minute, which only that stage runs."""


def command(
    record: Path, engine: str, *paths: str, target: str | None = None, passed: Path | None = None
) -> list[str]:
    """Run the tests marked `gpu` and with this engine in these files and folders.

    `target` is as for the plugin `recording`. Nothing is captured: output of a process that
    crashes or hangs would be lost.
    """
    made = [sys.executable, "-m", "pytest", "-p", "pytest_asyncio.plugin"]
    made += ["-p", "_hypothesis_pytestplugin", "-p", "benchmarks.gpu.recording"]
    made += ["--record", str(record), "-m", f"gpu and {engine}", "-rs", "-v", "--thorough"]
    # A warning of another version of a library is no reason to lose a test on this machine.
    made += ["--continue-on-collection-errors", "--capture=no", "-W", "default"]
    made += ["--target", target] if target is not None else []
    made += ["--passed", str(passed)] if passed else []
    return [*made, *paths]
