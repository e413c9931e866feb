"""The served models: lookup by name, leases, loading and unloading."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from core.config.schema import Config, ModelConfig
from core.contract.errors import BackendUnavailableError, ModelNotFoundError
from core.models.clock import Clock, LoopClock
from core.models.config_change import ConfigChange, ModelChanges, rooted
from core.models.downloads import Downloads, places
from core.models.entry import ModelEntry, ReportModelProgress
from core.models.folder_models import FolderModels
from core.models.loader import Loader
from core.models.memory import Meter, SystemMeter
from core.models.model_folder import folder_of
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
    """All models of a config, in its order, those of the models folder, and those loaded by command
    in addition.

    `default` answers requests without a model: the first one, or the last one switched to.
    `folder` is the models folder, as files.
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
        server = config.server
        self._paths = ModelPaths(config, plugins)
        self.folder = folder_of(config, plugins)
        self._in_folder = FolderModels(self.folder, config.loading)
        self._listed_twice: frozenset[str] = frozenset()
        self._models = {model.name: ModelEntry(model, root) for model, root in rooted(config)}
        self._configured = frozenset(self._models)
        self._retired: set[ModelEntry] = set()
        self.dummies = tuple(server.dummy_model_names if server.use_dummy_models else ())
        self._switched_to: str | None = None
        self._preset: Preset | None = None
        self._starting = True
        self._loaded = asyncio.Event()
        meter = meter or SystemMeter()
        self.downloads = Downloads(places(config))
        backends = Backends(plugins, self._paths, meter)
        self.estimates = backends.estimates
        self._starter = Starter(backends, self.downloads, plugins, config.base, report_progress)
        self._loader = Loader(
            config.loading,
            backends,
            self._starter,
            lambda: [*self.all(), *self._retired],
            clock or LoopClock(),
            meter,
        )

    def all(self) -> list[ModelEntry]:
        """The config's models in its order, then others that are loaded or about to be."""
        return [*self._models.values(), *(each for each in self._of_folder() if each.is_active)]

    def listed(self) -> list[ModelEntry]:
        """All there are, loaded or not; of the models folder as `look_at_folder` last saw it.

        What the config has by another name is not listed once more.
        """
        others = (each for each in self._of_folder() if each.name not in self._listed_twice)
        return [*self._models.values(), *others]

    def _of_folder(self) -> list[ModelEntry]:
        entries = self._in_folder.entries
        return [entry for name, entry in entries.items() if name not in self._models]

    @property
    def default(self) -> ModelEntry:
        """The model of requests that name none. Raises `BackendUnavailableError` without any."""
        there = self.all() or self.listed()
        if not there:
            raise BackendUnavailableError(
                "no model is configured; put one into the folder `server.model_dir`, or add one "
                "under `models` in the config"
            )
        if self._switched_to:
            there = [each for each in self.listed() if each.name == self._switched_to] or there
        return there[0]

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
        for entry in self._models.values():
            if name in entry.config.aliases:
                return FoundModel(entry)
        for entry in self.all():
            if name in entry.adapters:
                return FoundModel(entry, name)
        there = self.listed()
        known = [*self.all(), *there]
        for entry in known:
            if name == entry.name:
                return FoundModel(entry)
        for entry in known:
            if name in entry.config.aliases:
                return FoundModel(entry)
        if name in self.dummies:
            return FoundModel(self.default)
        available = ", ".join(model.name for model in there) or "none"
        raise ModelNotFoundError(
            f"the model {name!r} does not exist; available: {available}", param="model"
        )

    def find(self, name: str) -> ModelEntry:
        """The model with that name or alias, or with an adapter of that name."""
        return self.look_up(name).entry

    async def look_at_folder(self) -> None:
        """Find out what the models folder has now; what is no longer there is retired."""
        known = [model.config for model in self._models.values()]
        paths = await asyncio.to_thread(self._absolute_paths, known)
        for model in await self._in_folder.refresh():
            self._retire(model)
        entries = self._in_folder.entries
        self._listed_twice = frozenset(n for n, each in entries.items() if _is_among(each, paths))
        for model in entries.values():
            if self._preset and model.preset is None:
                model.use_preset(self._preset)

    def _absolute_paths(self, configs: Iterable[ModelConfig]) -> list[str]:
        """Where models are. Reads small files."""
        return [_absolute(self._paths.local(each.path, each.backend)) for each in configs]

    async def look_for(self, name: str | None) -> None:
        """The same, unless the model of that name, or some without one, is known anyway."""
        known = self.all()
        if not name and known:
            return
        if not any(name in (m.name, *m.config.aliases, *m.adapters) for m in known):
            await self.look_at_folder()

    @asynccontextmanager
    async def lease(self, named: FoundModel) -> AsyncIterator[ServedModel]:
        """Holds the model ready while the block runs; loads it if allowed.

        Raises `BackendUnavailableError`, and `ModelNotFoundError` if it was loaded without the
        adapter.
        """
        if named.entry.retired:  # since it was looked up
            named = self.look_up(named.name)
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

    def stays(self, model: ModelEntry) -> bool:
        """Whether it is there also when it is unloaded: the config or the models folder has it."""
        name = model.config.name
        return name in self._configured or self._in_folder.entries.get(name) is model

    def add(self, config: ModelConfig) -> ModelEntry:
        """The model of that name; a new one, outside the config, if there is none."""
        name = config.name
        model = self._models.get(name) or self._in_folder.entries.get(name)
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
        configured = {n: m for n, m in self._models.items() if n in self._configured}
        change = ConfigChange(configured, config, self._starter)
        await change.prepare()
        replaced = change.apply()
        others = {n: m for n, m in self._models.items() if n not in self._configured}
        self._models = {**change.entries, **others, **change.entries}
        self._configured = frozenset(change.entries)
        self._paths.use_config(config)
        self._loader.use_config(config.loading)
        self._in_folder.use_config(config.loading)
        taken = [each for each in others.items() if each[0] in self._configured]
        taken += self._in_folder.take(self._configured)
        replaced += [(old, self._models[name]) for name, old in taken]
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

    def _drop_gone(self) -> None:
        """Drop unloaded models that are not in the config."""
        for name in set(self._models) - self._configured:
            model = self._models[name]
            if model.state == "unloaded" and not model.on_request:
                del self._models[name]


def _absolute(path: str) -> str:
    return os.path.abspath(path)  # noqa: PTH100  (pathlib's keeps `..`)


def _is_among(model: ModelEntry, paths: Iterable[str]) -> bool:
    """Whether one of the paths is that of a model, or of a file in its folder."""
    own = _absolute(model.config.path)
    return any(path == own or path.startswith(f"{own}{os.sep}") for path in paths)
