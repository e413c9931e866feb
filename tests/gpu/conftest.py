"""The demo model in every form, served by every engine on the device."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from enginebay import Backend
from enginebay.config.schema import Config
from enginebay.contract.backend_settings import BackendSettings, Isolation
from enginebay.plugins import Plugins
from tests.gpu.models import Models, make_models
from tests.gpu.targets import Target, device, require
from tests.support import Server, serve

MODEL, ADAPTER = "demo", "adapter"
PATIENCE = 240
"""Seconds after which an answer that does not come is one that hangs."""


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return make_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def references() -> "References":
    return References()


class References:
    """A reference for each model, loaded when it is asked for."""

    def __init__(self) -> None:
        self._loaded: dict[Path, Any] = {}

    def __getitem__(self, folder: Path) -> Any:
        from tests.gpu.parity import Reference

        if folder not in self._loaded:
            self._loaded[folder] = Reference(folder)
        return self._loaded[folder]


@pytest.fixture(scope="module")
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    """The engine and options of this test, parametrized indirectly; skipped if it cannot run."""
    found: Target = request.param
    require(found.engine)
    if device() == "cuda" or found.engine != "exllamav2":
        yield found
        return
    if found.model == "gptq":
        pytest.skip("quantised weights have no stand-in for a rehearsal")
    from tests.exllamav2_cpu.backend import backend_installed

    with backend_installed():
        yield found


@pytest.fixture(scope="module")
def reference(target: Target, models: Models, references: References) -> Any:
    return references[models.reference(target)]


def config(target: Target, models: Models, **more: Any) -> Config:
    """The target as a model of a server, with an adapter if it loads the model that it is for."""
    options = target.all_options(device())
    if options.get("draft_model"):
        options["draft_model"] = str(models.folder)
    if target.model != "gptq":
        adapter = models.gguf_adapter if target.engine == "llamacpp" else models.peft
        options["adapters"] = {ADAPTER: str(adapter)}
    model = {
        "name": MODEL,
        "backend": target.engine,
        "path": str(models.of(target)),
        "options": options,
        "isolation": isolation(target),
        **more,
    }
    return Config.model_validate({"models": [model]})


def isolation(target: Target) -> Isolation:
    """A process, but for what can only be rehearsed in this one."""
    rehearsed_here = device() == "cpu" and target.engine == "exllamav2"
    return "thread" if rehearsed_here else "process"


@pytest.fixture(scope="module")
def server(target: Target, models: Models) -> Iterator[Server]:
    with serve(config(target, models), Plugins()) as running:
        yield running


def create(target: Target, models: Models) -> Backend:
    """The target's backend by itself, without a server."""
    entry = Plugins().backends[target.engine]
    assert entry.options is not None
    settings = BackendSettings(
        name=MODEL,
        path=str(models.of(target)),
        options=entry.options(**target.all_options(device())),
        isolation=isolation(target),
    )
    return entry.create(settings)
