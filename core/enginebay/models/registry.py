"""The served models: leases, loading, switching and unloading."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from enginebay.config.schema import Config, ModelConfig
from enginebay.models.config_change import ConfigChange, ModelChanges, PresetChange
from enginebay.models.downloads import Downloads, places
from enginebay.models.files.model_paths import ModelPaths
from enginebay.models.index import FoundModel, ModelIndex
from enginebay.models.loading.clock import Clock, LoopClock
from enginebay.models.loading.entry import ModelEntry, ReportModelProgress
from enginebay.models.loading.loader import Loader
from enginebay.models.loading.memory import Meter, SystemMeter
from enginebay.models.loading.running_backends import (
    Backends,
    MakeBackend,
    MakeGate,
    local_backend,
    local_gate,
)
from enginebay.models.loading.start import Starter
from enginebay.models.presets import Preset
from enginebay.models.served import ServedModel
from enginebay.plugins import Plugins


class Models(ModelIndex):
    """The served models of a config: leased to requests, loaded, switched and unloaded."""

    def __init__(
        self,
        config: Config,
        plugins: Plugins,
        report_progress: ReportModelProgress,
        *,
        clock: Clock | None = None,
        meter: Meter | None = None,
        make_gate: MakeGate = local_gate,
        make_backend: MakeBackend = local_backend,
    ) -> None:
        super().__init__(config, plugins, ModelPaths(config, plugins))
        self._retired: set[ModelEntry] = set()
        self._preset: Preset | None = None
        self._starting = True
        self._loaded = asyncio.Event()
        meter = meter or SystemMeter()
        self.downloads = Downloads(places(config))
        self._backends = Backends(config, plugins, self._paths, meter, make_gate, make_backend)
        self.estimates = self._backends.estimates
        self._starter = Starter(
            self._backends, self.downloads, plugins, config.base, report_progress
        )
        self._loader = Loader(
            config.loading,
            self._backends,
            self._starter,
            lambda: [*self.all(), *self._retired],
            clock or LoopClock(),
            meter,
        )

    @property
    def starting(self) -> bool:
        """Whether models with `load: start` are still loading."""
        return self._starting

    async def look_at_folder(self) -> None:
        """Find out what the models folder has now; what is no longer there is retired."""
        for model in await self._refresh():
            self._retire(model)
        for model in self._in_folder.entries.values():
            if self._preset and model.preset is None:
                model.use_preset(self._preset)

    async def look_for(self, name: str | None) -> None:
        """The same, unless the model of that name, or some without one, is known anyway."""
        known = self.all()
        if not name and known:
            return
        if not any(name in (m.name, *m.config.aliases, *m.adapters) for m in known):
            await self.look_at_folder()

    @asynccontextmanager
    async def lease(self, named: FoundModel, user: str | None = None) -> AsyncIterator[ServedModel]:
        """Hold the model ready for a user while the block runs; load it if allowed.

        The user is the name of an API key, or None for requests without one.

        Raises `BackendUnavailableError`, and `ModelNotFoundError` if it was loaded without the
        adapter.
        """
        if named.entry.retired:  # since it was looked up
            named = replace(self.look_up(named.name), asked=named.asked)
        entry = named.entry
        if entry.stand_in and entry.stand_in.is_loaded and not entry.is_loaded:
            entry = entry.stand_in
        await self._loader.take(entry, user, named.asked)
        try:
            entry.last_used = int(time.time())
            entry.stay.use(user)
            yield entry.served(named.adapter, named.asked)
        finally:
            self._loader.give_back(entry, user)

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
        self._used_last.clear()
        task = self._loader.load(model, config=config, replaced=before, drain_timeout=drain_timeout)

        def ended(task: asyncio.Task[None]) -> None:
            if before and not model.is_loaded and self._switched_to == model.name:
                self._switched_to = before.name
            self._drop_gone()

        task.add_done_callback(ended)
        return task

    def add(self, config: ModelConfig) -> ModelEntry:
        """The model of that name; a new one, outside the config, if there is none."""
        name = config.name
        model = self._get(name)
        if model is None:
            model = self._models[name] = ModelEntry(config, source="folder")
            if self._preset:
                model.use_preset(self._preset)
        elif not self.stays(model):
            model.configured = config
        return model

    async def use_config(self, config: Config) -> ModelChanges:
        """Serve the models of another config from now on, within its limits.

        Running requests go on with what they began with, however long they take. `ConfigError`, and
        no change, if a loaded model cannot go on with its new settings.
        """
        presets = PresetChange(self._models.values(), self._preset, config)
        await presets.read()
        change = ConfigChange(self._of_config(), config, self._starter)
        await change.prepare()
        presets.check(self._models.values())
        replaced = change.apply()
        self._paths.use_config(config)
        self._backends.use_config(config)
        replaced += self._use_entries(change.entries, config.loading)
        self._loader.use_config(config.loading)
        changed = change.names.changed
        changed += [n for n in presets.apply(self._models.values()) if n not in changed]
        self._preset = presets.of(self._preset) or self._preset
        for model in change.entries.values():
            if self._preset and model.preset is None:
                model.use_preset(self._preset)
        for old, new in replaced:
            self._retire(old, new)
        for model in change.added:
            if model.config.load == "start":
                self._loader.load(model)
        await self.look_at_folder()
        return change.names

    def _retire(self, old: ModelEntry, new: ModelEntry | None = None) -> None:
        """Unload it when its requests have ended; `new` takes its place."""
        old.retired = True
        if not old.is_active:
            return
        self._retired.add(old)
        task = self._loader.retire(old, new)
        task.add_done_callback(lambda _: self._retired.discard(old))

    def use_preset(self, preset: Preset) -> None:
        """Override sampling params for every model, and for those that are added later.

        `InvalidRequestError`, without any change, if it does not fit one of them.
        """
        for model in self.listed():
            model.check_preset(preset)
        for model in self.listed():
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
        await self.look_at_folder()
        first = [model for model in self.listed() if model.config.load == "start"]
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
