import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import ModuleType
from typing import Any

import pytest
from hypothesis import settings

from core.config.schema import Config
from core.plugins import Plugins
from tests import exllamav2_cpu
from tests.outsider import Outsider
from tests.support import DEMO_MODEL, Server, plugins_with, scripted, scripted_config, serve

# A slow machine is no failure; and a change that lands must not depend on luck.
settings.register_profile("enginebay", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("enginebay")

ServeScripted = Callable[..., Server]


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
        "path": str(DEMO_MODEL),
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
