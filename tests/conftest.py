import logging
import os
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import settings

from enginebay.config.schema import Config
from enginebay.plugins import Plugins
from tests import effort, exllamav2_cpu, llama_templates, schema_suite
from tests.outsider import Outsider
from tests.support import SEEING_MODEL, Server, plugins_with, scripted, scripted_config, serve
from tests.wings import lane

ServeScripted = Callable[..., Server]


def pytest_addoption(parser: pytest.Parser) -> None:
    help = "run tests marked thorough, too, and laws with all of their examples"
    parser.addoption("--thorough", action="store_true", help=help)
    lane.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    lane.hide(config)
    settings.load_profile("thorough" if config.getoption("thorough", default=False) else "quick")
    # Which jobs in the background of a shell ignore, and tests send.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if "CI" in os.environ and not hasattr(config, "workerinput"):  # once, for all of xdist's
        llama_templates.fetch()
        schema_suite.fetch()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    effort.leave_out(config, items)
    lane.leave_out(config, items)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return lane.needs_absent(collection_path, config) or None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Reports go from process to process as UTF-8, and some tests log halves of characters."""
    report = yield
    report.sections = [(name, encodable(text)) for name, text in report.sections]
    if report.failed and encodable(report.longreprtext) != report.longreprtext:
        report.longrepr = encodable(report.longreprtext)
    return report


def encodable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


@pytest.fixture
def serve_scripted() -> Iterator[ServeScripted]:
    """`serve_scripted(script, **model_config)` runs a server whose model says what it is told."""
    with ExitStack() as stack:

        def start(script: Any, *, engine: dict[str, Any] | None = None, **model: Any) -> Server:
            plugins = plugins_with(scripted=scripted(script, **(engine or {})))
            return stack.enter_context(serve(scripted_config(**model), plugins))

        yield start


@pytest.fixture
def log_stays() -> Iterator[None]:
    """For tests that set up logging, which is that of the whole process."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(scope="session")
def demo() -> Iterator[Server]:
    """The shipped demo model on the backend `hf`, as a newcomer's first start has it."""
    model = {
        "name": "enginebay-demo",
        "backend": "hf",
        "path": str(SEEING_MODEL),
        "options": {"device": "cpu", "threads": 1},
    }
    with serve(Config.model_validate({"models": [model]}), Plugins()) as server:
        yield server


@pytest.fixture(scope="module")
def exllamav2_on_cpu() -> Iterator[ModuleType]:
    """The module `exllamav2`, which can be imported while a module of tests uses this fixture."""
    if reason := exllamav2_cpu.missing():
        pytest.skip(reason)
    with exllamav2_cpu.installed() as module:
        yield module


@pytest.fixture(scope="session")
def outsider(tmp_path_factory: pytest.TempPathFactory) -> Outsider:
    """Enginebay installed from its wheel, for packages that are installed beside it."""
    pytest.importorskip("hatchling")
    return Outsider(tmp_path_factory.mktemp("outsider"))
