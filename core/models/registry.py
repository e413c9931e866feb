"""The served models: lookup by name, leases, loading and unloading."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from core.config.names import root_of
from core.config.schema import Config, ModelConfig
from core.contract.errors import BackendUnavailableError, ModelNotFoundError
from core.models.clock import Clock, LoopClock
from core.models.downloads import Downloads, places
from core.models.entry import ModelEntry, ReportModelProgress
from core.models.loader import Loader
from core.models.memory import Meter, SystemMeter
from core.models.model_paths import ModelPaths
from core.models.presets import Preset
from core.models.running_backends import Backends
from core.models.served import ServedModel
from core.models.start import Starter
from core.plugins import Plugins


@dataclass(frozen=True, slots=True)
class FoundModel:
    """The target of a model name: an entry, or one of its adapters."""

    entry: ModelEntry
    adapter: str | None = None

    @property
    def name(self) -> str:
        """Its name in answers."""
        return self.adapter or self.entry.name


class Models:
    """All models of a config, in its order, and those loaded by command in addition.

    `default` answers requests without a model: the first one, or the last one switched to.
    """

    def __init__(
        self,
        config: Config,
        plugins: Plugins,
        report_progress: ReportModelProgress,
        *,
        clock: Clock | None = None,
        meter: Meter | None = None,
    ) -> None:
        likes = {model.name: model.like for model in config.models}
        self._models = {
            model.name: ModelEntry(model, root_of(model.name, likes)) for model in config.models
        }
        self._configured = frozenset(self._models)
        server = config.server
        self.dummies = tuple(server.dummy_model_names if server.use_dummy_models else ())
        self._switched_to: str | None = None
        self._preset: Preset | None = None
        self._starting = True
        self._loaded = asyncio.Event()
        meter = meter or SystemMeter()
        self.downloads = Downloads(places(config))
        backends = Backends(plugins, ModelPaths(config, plugins), meter)
        self.estimates = backends.estimates
        starter = Starter(backends, self.downloads, plugins, config.base, report_progress)
        self._loader = Loader(
            config.loading, backends, starter, self.all, clock or LoopClock(), meter
        )

    def all(self) -> list[ModelEntry]:
        """Every model: the config's in its order, then the others."""
        return list(self._models.values())

    @property
    def default(self) -> ModelEntry:
        """The model of requests that name none. Raises `BackendUnavailableError` without any."""
        if not self._models:
            raise BackendUnavailableError(
                "no model is configured; add one under `models` in the config"
            )
        return self._models.get(self._switched_to or "") or self.all()[0]

    @property
    def starting(self) -> bool:
        """Whether models with `load: start` are still loading."""
        return self._starting

    def look_up(self, name: str | None) -> FoundModel:
        """The target of a name in a request: a model, an alias, or an adapter.

        In whatever state it is. Raises `ModelNotFoundError`; without a name, and without any model,
        `BackendUnavailableError`.
        """
        if not name:
            return FoundModel(self.default)
        if entry := self._models.get(name):
            return FoundModel(entry)
        for entry in self.all():
            if name in entry.config.aliases:
                return FoundModel(entry)
        for entry in self.all():
            if name in entry.adapters:
                return FoundModel(entry, name)
        if name in self.dummies:
            return FoundModel(self.default)
        raise ModelNotFoundError(
            f"the model {name!r} does not exist; available: {', '.join(self._models)}",
            param="model",
        )

    def find(self, name: str) -> ModelEntry:
        """The model with that name or alias, or with an adapter of that name."""
        return self.look_up(name).entry

    @asynccontextmanager
    async def lease(self, named: FoundModel) -> AsyncIterator[ServedModel]:
        """Holds the model ready while the block runs; loads it if allowed.

        Raises `BackendUnavailableError`, and `ModelNotFoundError` if it was loaded without the
        adapter.
        """
        entry = named.entry
        await self._loader.take(entry)
        try:
            entry.last_used = int(time.time())
            yield entry.served(named.adapter)
        finally:
            self._loader.give_back(entry)

    def load(self, model: ModelEntry, config: ModelConfig | None = None) -> asyncio.Task[None]:
        """Start loading a model beside the others, optionally with another config.

        The task ends when the model is ready or has an `error`; callers may stop waiting for it.
        """
        return self._loader.load(model, config=config)

    def switch(
        self,
        model: ModelEntry,
        config: ModelConfig | None = None,
        *,
        drain_timeout: float | None = None,
    ) -> asyncio.Task[None]:
        """Start loading a model in place of the default one, and make it the default.

        The previous one is unloaded first, unless it is pinned; if the load fails it becomes the
        default again, and the next request loads it.
        """
        before = self.default if self.default is not model else None
        self._switched_to = model.name
        task = self._loader.load(model, config=config, replaced=before, drain_timeout=drain_timeout)

        def ended(task: asyncio.Task[None]) -> None:
            if before and not model.is_loaded and self._switched_to == model.name:
                self._switched_to = before.name
            self._drop_gone()

        task.add_done_callback(ended)
        return task

    def is_configured(self, model: ModelEntry) -> bool:
        """Whether the config has it, so that it stays when it is unloaded."""
        return model.config.name in self._configured

    def add(self, config: ModelConfig) -> ModelEntry:
        """The model of that name; a new one, outside the config, if there is none."""
        if config.name not in self._models:
            model = self._models[config.name] = ModelEntry(config)
            if self._preset:
                model.use_preset(self._preset)
        model = self._models[config.name]
        if not self.is_configured(model):
            model.configured = config
        return model

    def use_preset(self, preset: Preset) -> None:
        """Override sampling params for every model, and for those that are added later.

        `InvalidRequestError`, without any change, if it does not fit one of them.
        """
        for model in self.all():
            model.check_preset(preset)
        for model in self.all():
            model.use_preset(preset)
        self._preset = preset

    async def unload(self, model: ModelEntry, *, drain_timeout: float | None = None) -> None:
        """Unload a model when its requests have ended, or after the drain timeout."""
        await self._loader.unload(model, drain_timeout=drain_timeout)
        self._drop_gone()

    async def measure(self) -> None:
        """Measure the models' memory use."""
        await self._loader.room.measure()

    async def load_at_start(self) -> None:
        """Load the models with `load: start`, one after the other."""
        first = [model for model in self.all() if model.config.load == "start"]
        if loads := [self._loader.load(model) for model in first]:
            await asyncio.wait(loads)
        self._starting = False
        self._loaded.set()

    async def wait_until_loaded(self) -> None:
        """Return when every model with `load: start` is ready or has failed."""
        await self._loaded.wait()

    async def close(self) -> None:
        """Unload every model, and stop all downloads."""
        self.downloads.close()
        await self._loader.close()

    def _drop_gone(self) -> None:
        """Drop unloaded models that are not in the config."""
        for name in set(self._models) - self._configured:
            model = self._models[name]
            if model.state == "unloaded" and not model.on_request:
                del self._models[name]
