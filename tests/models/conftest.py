"""Models on backends that start, answer and take memory as a test says, and a clock of its own."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from enginebay import BackendUnavailableError
from enginebay.config.schema import Config
from enginebay.contract.backend_settings import BackendSettings
from enginebay.contract.estimates import FreeMemory, MemoryUse
from enginebay.contract.types import ModelInfo
from enginebay.models.loading.entry import ModelEntry
from enginebay.models.registry import Models
from enginebay.testing import ScriptedEngine
from tests.clock import FakeClock as FakeClock
from tests.support import InlineBackend, plugins_with

GIB = 2**30


class FakeMeter:
    """24 GiB of RAM and 16 of GPU memory; processes take what a test says."""

    def __init__(self) -> None:
        self.processes: dict[int, MemoryUse] = {}
        self.swap = 0

    def total(self) -> MemoryUse:
        return MemoryUse(24 * GIB, 16 * GIB)

    def free(self) -> FreeMemory:
        taken = sum(self.processes.values(), MemoryUse())
        return FreeMemory(24 * GIB - taken.ram, 16 * GIB - taken.gpu, self.swap)

    def gpu_taken(self) -> int:
        return sum(use.gpu for use in self.processes.values())

    def of_process(self, pid: int) -> MemoryUse | None:
        return self.processes.get(pid)


class FakeBackend(InlineBackend):
    """Starts when `may_start` is set; its process takes `memory`."""

    def __init__(self, settings: BackendSettings, house: "House") -> None:
        super().__init__(ScriptedEngine(["ok"]))
        self.name = settings.name
        self.settings = settings
        self._house = house
        self._pid = 100_000 + len(house.started)

    @property
    def pid(self) -> int | None:
        return self._pid

    async def start(self) -> ModelInfo:
        self._house.started.append(self.name)
        self.settings.report_progress("weights", 0.5)
        await self._house.may_start.wait()
        if reason := self._house.broken.get(self.name):
            raise BackendUnavailableError(reason)
        memory = self._house.memory.get(self.name, MemoryUse())
        self._house.meter.processes[self._pid] = memory
        self._house.running.append(self.name)
        return await super().start()

    async def close(self) -> None:
        await self._house.may_stop.wait()
        self._house.closed.append(self.name)
        if self.name in self._house.running:
            self._house.running.remove(self.name)
        self._house.meter.processes.pop(self._pid, None)


class House:
    """What happened to backends, and what is to happen."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.started: list[str] = []
        self.closed: list[str] = []
        self.running: list[str] = []
        self.broken: dict[str, str] = {}
        self.memory: dict[str, MemoryUse] = {}
        self.may_start = asyncio.Event()
        self.may_start.set()
        self.may_stop = asyncio.Event()
        self.may_stop.set()
        self.clock = FakeClock()
        self.meter = FakeMeter()

    @asynccontextmanager
    async def models(self, *models: dict[str, Any], **loading: Any) -> AsyncIterator[Models]:
        """These models on backends of this house; `loading` is that section of the config.

        Files `*.fake` of the house's folder are models, too.
        """
        defaults = {"backend": "fake", "path": ".", "load": "request"}
        entries = [{**({} if "like" in model else defaults), **model} for model in models]
        server = {"model_dir": str(self.base)}
        config = Config.model_validate({"models": entries, "loading": loading, "server": server})
        plugins = plugins_with()
        plugins.backends(
            "fake",
            lambda settings: FakeBackend(settings, self),
            serves=lambda path: path.suffix == ".fake",
        )
        made = Models(config, plugins, lambda *_: None, clock=self.clock, meter=self.meter)
        try:
            yield made
        finally:
            await made.close()


@pytest.fixture
async def house(tmp_path: Path) -> House:
    # One after the other: so `settle` waits for those that began before.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    return House(tmp_path)


async def settle() -> None:
    """Let every task that can go on do so; threads of `asyncio.to_thread` are waited for."""
    for _ in range(20):
        await asyncio.sleep(0)
        await asyncio.to_thread(lambda: None)


def states(models: Models) -> dict[str, str]:
    return {model.name: model.state for model in models.all()}


async def ask(models: Models, name: str | None) -> str:
    """What a request does: hold the model, and let go of it."""
    async with models.lease(models.look_up(name)) as model:
        return model.name


async def hold(models: Models, name: str) -> tuple[ModelEntry, Callable[[], Any]]:
    """A request that runs until the function that is returned is awaited."""
    lease = models.lease(models.look_up(name))
    await lease.__aenter__()
    return models.find(name), lambda: lease.__aexit__(None, None, None)
