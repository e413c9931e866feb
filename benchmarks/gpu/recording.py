"""A plugin of pytest that writes what came of each test to a file, line by line, as it happens.

    python -m pytest -p benchmarks.gpu.recording --record FILE

A crash, or a run that is cut off, leaves the lines of all tests before. A line is a `Line` as JSON.
"""

import json
from pathlib import Path
from typing import Any, TypedDict

import pytest


class Line(TypedDict):
    """One test: `outcome` is passed, failed or skipped, `reason` why not the first, `figures` what
    the test has put down with `record_property`, `seconds` without what comes before and after it.
    """

    test: str
    outcome: str
    reason: str
    seconds: float
    figures: dict[str, Any]


def read(file: Path) -> list[Line]:
    """The lines of a file; none if nothing was written. A half line at the end is left out."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text("utf-8").splitlines() if line[-1:] == "}"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", type=Path, required=True, help="file for what came of each test")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Recorder(config.getoption("--record")))


class _Recorder:
    def __init__(self, file: Path) -> None:
        self._file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        line = Line(
            test=report.nodeid.replace("tests/", "", 1),
            outcome=report.outcome,
            reason=_reason(report),
            seconds=round(report.duration, 2),
            figures=dict(report.user_properties),
        )
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            line = Line(
                test=report.nodeid,
                outcome="failed",
                reason=_shorten(str(report.longrepr)),
                seconds=0.0,
                figures={},
            )
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def _reason(report: pytest.TestReport) -> str:
    if report.skipped and isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    where = f"in {report.when}: " if report.failed and report.when != "call" else ""
    return where + _shorten(report.longreprtext)


def _shorten(text: str) -> str:
    """What the exception said: the lines that pytest begins with E; the end of what has none."""
    said = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")]
    return ("\n".join(said) or text[-1000:])[:2000]
