"""What stages write down: a file of lines, each written as soon as there is something to say.

A crash, or a stage that is killed, leaves all lines before it. A line is a `Line` as JSON. As a
plugin of pytest this writes a line for each test:

    python -m pytest -p benchmarks.gpu.recording --record FILE --target hf-float32
"""

import json
from pathlib import Path
from typing import Any, Literal, TypedDict

import pytest

Outcome = Literal["passed", "failed", "skipped"]


class Line(TypedDict):
    """One test, fact or measurement.

    `reason` is why it did not pass, `figures` what it has measured (a test: with
    `record_property`), `seconds` without the fixtures of a test.
    """

    test: str
    outcome: Outcome
    reason: str
    seconds: float
    figures: dict[str, Any]


def read(file: Path) -> list[Line]:
    """The lines of a file; none if nothing was written. A half line at the end is left out."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text("utf-8").splitlines() if line[-1:] == "}"]


def write(
    file: Path,
    test: str,
    outcome: Outcome,
    reason: str = "",
    seconds: float = 0.0,
    figures: dict[str, Any] | None = None,
) -> None:
    """Append a line."""
    line = Line(
        test=test,
        outcome=outcome,
        reason=reason[:2000],
        seconds=round(seconds, 2),
        figures=figures or {},
    )
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(line) + "\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", type=Path, required=True, help="file for what came of each test")
    parser.addoption("--target", help="only the tests of this target; '' for those without one")
    parser.addoption("--passed", type=Path, help="file of lines: what has passed is not run again")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Recorder(config.getoption("--record")))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    target = config.getoption("--target")
    before = config.getoption("--passed")
    passed = {line["test"] for line in read(before)} if before else set()
    kept = [
        item
        for item in items
        if (target is None or _target(item) == target) and name(item.nodeid) not in passed
    ]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def _target(item: pytest.Item) -> str:
    """The name of the target that a test has as a parameter; '' if it has none."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return str(getattr(parameters.get("target"), "name", ""))


def name(node_id: str) -> str:
    """What a test is called in lines."""
    return node_id.removeprefix("tests/")


class _Recorder:
    def __init__(self, file: Path) -> None:
        self._file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            figures = dict(report.user_properties)
            self._write(report.nodeid, report.outcome, _reason(report), report.duration, figures)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(report.nodeid, "failed", _shorten(str(report.longrepr)), 0.0, {})

    def _write(
        self, node_id: str, outcome: Outcome, reason: str, seconds: float, figures: dict[str, Any]
    ) -> None:
        write(self._file, name(node_id), outcome, reason, seconds, figures)


def _reason(report: pytest.TestReport) -> str:
    if report.skipped and isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    where = f"in {report.when}: " if report.failed and report.when != "call" else ""
    return where + _shorten(report.longreprtext)


def _shorten(text: str) -> str:
    """What the exception said: the lines that pytest begins with E; the end of what has none."""
    said = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")]
    return ("\n".join(said) or text[-1000:])[:2000]
