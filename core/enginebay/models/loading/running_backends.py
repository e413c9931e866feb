"""Starts, stops and measures the backends of models."""

import asyncio
import logging
import os
from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import replace

from enginebay.config.engines import engine_key, engine_models
from enginebay.config.schema import Config, ModelConfig
from enginebay.contract.backend import Backend
from enginebay.contract.backend_settings import BackendSettings, ReportBatchSize, ReportProgress
from enginebay.contract.errors import BackendUnavailableError
from enginebay.contract.estimates import MemoryUse
from enginebay.contract.registers import BackendEntry
from enginebay.contract.types import ModelInfo
from enginebay.models.admission_queue import Gate, GateSize, with_headroom
from enginebay.models.files.model_paths import ModelPaths
from enginebay.models.loading.backend_settings import backend_settings
from enginebay.models.loading.fit import Estimates, Fit
from enginebay.models.loading.memory import Meter
from enginebay.models.loras import Loras
from enginebay.plugins import Plugins

logger = logging.getLogger(__name__)


MakeGate = Callable[[str, ModelConfig, GateSize], Gate]
"""`make(engine, config, size)`: the admission queue of the engine that has this name."""

MakeBackend = Callable[[BackendEntry, BackendSettings], Awaitable[Backend]]
"""`await make(entry, settings)`: a backend of this kind, which is not started."""


def local_gate(engine: str, config: ModelConfig, size: GateSize) -> Gate:
    """An admission queue of this server's own."""
    return Gate(size, config.queue_timeout)


async def local_backend(entry: BackendEntry, settings: BackendSettings) -> Backend:
    """A backend as it is registered."""
    return entry.create(settings)


class StartedBackend:
    """A started backend; `models` counts the models that use it.

    `gate` is their admission queue. `memory` is its memory use, `peak` the highest seen. `loras`
    are those loaded at run time.
    """

    def __init__(
        self,
        key: Hashable,
        config: ModelConfig,
        backend: Backend,
        info: ModelInfo,
        gate: Gate,
        memory: MemoryUse,
    ) -> None:
        self.key = key
        self._config = config
        self.backend = backend
        self.info = info
        self.gate = gate
        self.memory = memory
        self.peak = memory
        self.models = 1
        self.loras = Loras()

    def admit(self, config: ModelConfig) -> None:
        """Admit requests as this config says from now on."""
        self._config = config
        self.gate.resize(gate_size(config, self.info), config.queue_timeout)

    def use_batch_size(self, choices: int | None) -> None:
        """The backend computes another number of choices at once from now on."""
        self.info = replace(self.info, max_batch_size=choices)
        self.admit(self._config)


class _BatchSize:
    """Whom a backend tells how many choices it computes; until it has started, that is kept."""

    def __init__(self) -> None:
        self._started: StartedBackend | None = None
        self._told: list[int | None] = []

    def __call__(self, choices: int | None) -> None:
        if self._started:
            self._started.use_batch_size(choices)
        else:
            self._told = [choices]

    def tell(self, started: StartedBackend) -> None:
        self._started = started
        for choices in self._told:
            started.use_batch_size(choices)


class Backends:
    """The started backends. Models that share an engine by `like` share one."""

    def __init__(
        self,
        config: Config,
        plugins: Plugins,
        paths: ModelPaths,
        meter: Meter,
        make_gate: MakeGate = local_gate,
        make_backend: MakeBackend = local_backend,
    ) -> None:
        self._plugins = plugins
        self._paths = paths
        self._meter = meter
        self._make_gate = make_gate
        self._make_backend = make_backend
        self.use_config(config)
        self.estimates = Estimates(plugins, paths, meter)
        self._started: dict[Hashable, StartedBackend] = {}
        self._turns: defaultdict[Hashable, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._peaks: dict[Hashable, MemoryUse] = {}

    def use_config(self, config: Config) -> None:
        """Name engines after the models of this config from now on."""
        self._sharing = engine_models(config.models)

    def run_elsewhere(self, config: ModelConfig) -> bool:
        """Whether the engines of such a model run on other machines."""
        return self._plugins.backends.run_elsewhere(config.backend)

    def is_started(self, config: ModelConfig, root: str) -> bool:
        """Whether such a model would share a running backend."""
        return engine_key(config, root) in self._started

    def expected(self, config: ModelConfig, root: str) -> tuple[MemoryUse, bool]:
        """The memory a model will need, and whether that was measured. May block.

        If not, it is the least that its backend says it needs, or the size of its files, on the
        GPU if there is one.
        """
        measured = self._peaks.get(engine_key(config, root))
        if measured is not None:
            return measured, True
        fit = self.fit(config)
        return (fit.estimate.least if fit else MemoryUse()), False

    def fit(self, config: ModelConfig) -> Fit | None:
        """Whether a model fits; None for one whose load will say what is wrong. May block."""
        try:
            return self.estimates.fit(config)
        except BackendUnavailableError:
            return None

    async def start(
        self, config: ModelConfig, root: str, report_progress: ReportProgress
    ) -> StartedBackend:
        """A backend for this model: a running one, or a new one."""
        key = engine_key(config, root)
        async with self._turns[key]:
            if started := self._started.get(key):
                started.models += 1
                return started
            sharing, batch_size = self._sharing.get(key, [config]), _BatchSize()
            engine = sharing[0].name
            backend = await self._create(sharing, config, report_progress, batch_size)
            try:
                _require_isolation(config, backend)
                started = await self._start(key, engine, backend, config)
            except BaseException:
                await quietly(backend.close(), config.name)
                raise
            batch_size.tell(started)
            self._started[key] = started
            self._peaks[key] = started.peak.highest(self._peaks.get(key, MemoryUse()))
            return started

    async def _start(
        self, key: Hashable, engine: str, backend: Backend, config: ModelConfig
    ) -> StartedBackend:
        """Start a backend and measure the increase in memory use."""
        before, gpu_before = await self._taken(None), await self._gpu_taken()
        info = await backend.start()
        memory = MemoryUse()
        if not backend.elsewhere:
            memory = await self._taken(backend.pid)
            if backend.pid is None:
                memory = memory.since(before)
            if not memory.gpu:
                memory = MemoryUse(memory.ram, max(0, await self._gpu_taken() - gpu_before))
        gate = self._make_gate(engine, config, gate_size(config, info))
        return StartedBackend(key, config, backend, info, gate, memory)

    async def stop(self, started: StartedBackend, *, stopping: bool = False) -> None:
        """Close it once no model uses it; `stopping`: the server does, see `Backend.disconnect`."""
        async with self._turns[started.key]:
            started.models -= 1
            if not started.models:
                self._started.pop(started.key, None)
                started.gate.close(BackendUnavailableError("the model was unloaded"))
                await (started.backend.disconnect() if stopping else started.backend.close())

    async def measure(self, started: StartedBackend) -> None:
        """Measure its memory use.

        Without its own process it keeps the value measured at start, since the rest of the server's
        memory cannot be attributed.
        """
        if started.backend.pid is None:
            return
        now = await self._taken(started.backend.pid)
        started.memory = MemoryUse(now.ram, now.gpu or started.memory.gpu)
        started.peak = started.peak.highest(started.memory)
        self._peaks[started.key] = started.peak

    async def _create(
        self,
        sharing: Sequence[ModelConfig],
        config: ModelConfig,
        report_progress: ReportProgress,
        report_batch_size: ReportBatchSize,
    ) -> Backend:
        entry = self._plugins.backends.get(config.backend)
        if entry is None:
            installed = ", ".join(self._plugins.backends) or "none"
            raise BackendUnavailableError(
                f"unknown backend {config.backend!r}; installed: {installed}"
            )
        settings = await asyncio.to_thread(
            backend_settings, config, entry, self._paths, report_progress
        )
        settings = replace(
            settings,
            report_batch_size=report_batch_size,
            names=tuple(model.name for model in sharing),
            aliases=tuple(alias for model in sharing for alias in model.aliases),
        )
        return await self._make_backend(entry, settings)

    async def _taken(self, pid: int | None) -> MemoryUse:
        taken = await asyncio.to_thread(self._meter.of_process, pid or os.getpid())
        return taken or MemoryUse()

    async def _gpu_taken(self) -> int:
        return await asyncio.to_thread(self._meter.gpu_taken)


def gate_size(config: ModelConfig, info: ModelInfo) -> GateSize:
    """How many choices of a model may run at once, and how many requests may wait."""
    most = config.max_running or with_headroom(info.max_batch_size)
    return GateSize(most, config.max_queue, info.max_batch_size)


def _require_isolation(config: ModelConfig, backend: Backend) -> None:
    if not backend.elsewhere and config.isolation not in (None, backend.isolation):
        raise BackendUnavailableError(
            f"the backend {config.backend!r} cannot run with `isolation: {config.isolation}`; "
            "delete that line from the config"
        )


async def quietly(closing: Awaitable[None], name: str) -> None:
    """Close a model that is not in use; errors are only logged."""
    try:
        await closing
    except Exception:
        logger.exception("model %s could not be closed", name)
