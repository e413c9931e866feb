"""Which models there are, and which one a name means."""

import asyncio
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from enginebay.config.loading import LoadingConfig
from enginebay.config.schema import Config, ModelConfig
from enginebay.contract.errors import BackendUnavailableError, ModelNotFoundError
from enginebay.models.config_change import rooted
from enginebay.models.files.model_folder import folder_of
from enginebay.models.files.model_paths import ModelPaths
from enginebay.models.folder_models import FolderModels
from enginebay.models.loading.entry import ModelEntry
from enginebay.plugins import Plugins


@dataclass(frozen=True, slots=True)
class FoundModel:
    """The target of a model name: an entry, or one of its adapters. `asked`: that name, if any."""

    entry: ModelEntry
    adapter: str | None = None
    asked: str | None = None

    @property
    def name(self) -> str:
        """Its name in answers."""
        return self.adapter or self.entry.name


class ModelIndex:
    """All models of a config, in its order, those of the models folder, and those loaded by command
    in addition.

    `default` is the first model, or the last one switched to. A request without a model gets the
    `current` model of its user: the last one that the user named, else the default one.
    `folder` is the models folder, as files. Everything happens on the event loop, but for the
    reading of files, which has a thread.
    """

    def __init__(self, config: Config, plugins: Plugins, paths: ModelPaths) -> None:
        self.folder = folder_of(config, plugins)
        self.dummies = tuple(
            config.server.dummy_model_names if config.server.use_dummy_models else ()
        )
        self._paths = paths
        self._in_folder = FolderModels(self.folder, config.loading)
        self._listed_twice: frozenset[str] = frozenset()
        self._models = {model.name: ModelEntry(model, root) for model, root in rooted(config)}
        self._configured = frozenset(self._models)
        self._switched_to: str | None = None
        self._used_last: dict[str | None, str] = {}

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

    def use(self, user: str | None, name: str) -> None:
        """Note that a user, the name of an API key or None, generates text with this model."""
        self._used_last[user] = name

    def current(self, user: str | None) -> FoundModel:
        """The model of a user's requests that name none; it need not be loaded.

        Raises `BackendUnavailableError` without any model.
        """
        name = self._used_last.get(user)
        with suppress(ModelNotFoundError):
            if name and name not in self.dummies:
                found = self.look_up(name)
                loadable = found.entry.on_request and found.entry.state != "failed"
                if found.entry.is_loaded or loadable:
                    return replace(found, asked=None)
        return FoundModel(self.default)

    def look_up(self, name: str | None, user: str | None = None) -> FoundModel:
        """The target of a name in a request of a user: a model, an alias, or an adapter.

        In whatever state it is. Raises `ModelNotFoundError`; without a name, and without any model,
        `BackendUnavailableError`.
        """
        if not name:
            return self.current(user)
        if entry := self._models.get(name):
            return FoundModel(entry, None, name)
        for entry in self._models.values():
            if name in entry.config.aliases:
                return FoundModel(entry, None, name)
        for entry in self.all():
            if name in entry.adapters:
                return FoundModel(entry, name, name)
        there = self.listed()
        known = [*self.all(), *there]
        for entry in known:
            if name == entry.name:
                return FoundModel(entry, None, name)
        for entry in known:
            if name in entry.config.aliases:
                return FoundModel(entry, None, name)
        if name in self.dummies:
            return replace(self.current(user), asked=name)
        available = ", ".join(model.name for model in there) or "none"
        raise ModelNotFoundError(
            f"the model {name!r} does not exist; available: {available}", param="model"
        )

    def find(self, name: str) -> ModelEntry:
        """The model with that name or alias, or with an adapter of that name."""
        return self.look_up(name).entry

    def stays(self, model: ModelEntry) -> bool:
        """Whether it is there also when it is unloaded: the config or the models folder has it."""
        name = model.config.name
        return name in self._configured or self._in_folder.entries.get(name) is model

    def _get(self, name: str) -> ModelEntry | None:
        """The model of exactly that name."""
        return self._models.get(name) or self._in_folder.entries.get(name)

    def _of_config(self) -> dict[str, ModelEntry]:
        """Those that the config has, by name."""
        return {name: each for name, each in self._models.items() if name in self._configured}

    def _use_entries(
        self, entries: Mapping[str, ModelEntry], loading: LoadingConfig
    ) -> list[tuple[ModelEntry, ModelEntry]]:
        """Let these be the config's models; returns others of these names with their successors."""
        others = {n: m for n, m in self._models.items() if n not in self._configured}
        self._models = {**entries, **others, **entries}
        self._configured = frozenset(entries)
        self._in_folder.use_config(loading)
        taken = [each for each in others.items() if each[0] in self._configured]
        taken += self._in_folder.take(self._configured)
        return [(old, self._models[name]) for name, old in taken]

    async def _refresh(self) -> list[ModelEntry]:
        """Look at the models folder again; returns the entries of what is no longer there."""
        known = [model.config for model in self._models.values()]
        paths = await asyncio.to_thread(self._absolute_paths, known)
        gone = await self._in_folder.refresh()
        entries = self._in_folder.entries
        self._listed_twice = frozenset(n for n, each in entries.items() if _is_among(each, paths))
        return gone

    def _absolute_paths(self, configs: Iterable[ModelConfig]) -> list[str]:
        """Where models are. Reads small files."""
        local = (self._paths.local(each.path, each.backend) for each in configs)
        return [_absolute(path) for path in local if path]

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
