"""What another config changes of the models that are served."""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from enginebay.config.engines import engine_key
from enginebay.config.names import root_of
from enginebay.config.problems import ConfigError, Problem
from enginebay.config.schema import Config, ModelConfig
from enginebay.contract.errors import ServingError
from enginebay.models.loading.entry import ModelEntry
from enginebay.models.loading.start import Starter
from enginebay.models.presets import Preset, load_preset, preset_files


@dataclass(frozen=True, slots=True)
class ModelChanges:
    """The names of the models that a change of the config concerns."""

    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)


def rooted(config: Config) -> Iterator[tuple[ModelConfig, str]]:
    """Each model of a config, and the one at the end of its `like` chain."""
    likes = {model.name: model.like for model in config.models}
    return ((model, root_of(model.name, likes)) for model in config.models)


class ConfigChange:
    """The entries of a config's models, made from those of the config before.

    A model that has not changed keeps its entry, and so does one whose engine need not be loaded
    anew: later requests get its new settings. One that needs another engine gets a new entry. A
    model whose template was edited has changed.
    """

    def __init__(self, before: Mapping[str, ModelEntry], config: Config, starter: Starter) -> None:
        self.entries: dict[str, ModelEntry] = {}
        self.added: list[ModelEntry] = []
        self.names = ModelChanges()
        self._config = config
        self._starter = starter
        self._settings: list[tuple[ModelEntry, ModelConfig, str]] = []
        self._steps: list[Callable[[], None]] = []
        self._replaced: list[tuple[ModelEntry, ModelEntry | None]] = []
        for model, root in rooted(config):
            self.entries[model.name] = self._entry(before.get(model.name), model, root)
        for name, old in before.items():
            if name not in self.entries:
                self.names.removed.append(name)
                self._replaced.append((old, None))

    def _entry(self, old: ModelEntry | None, model: ModelConfig, root: str) -> ModelEntry:
        base = self._config.base
        if old is None:
            self.names.added.append(model.name)
            self.added.append(new := ModelEntry(model, root))
            return new
        reads_again = old.own_templates_are_edited(base)
        is_edited = reads_again or old.template_is_edited(base)
        if (old.configured, old.root) == (model, root) and not is_edited:
            return old
        self.names.changed.append(model.name)
        same_engine = engine_key(old.config, old.root) == engine_key(model, root)
        if old.is_active and (reads_again or not (same_engine and old.state == "ready")):
            new = ModelEntry(model, root)
            self._replaced.append((old, new))
            return new
        self._settings.append((old, model, root))
        return old

    async def prepare(self) -> None:
        """Get loaded models ready for their new settings. `ConfigError` if one cannot have them."""
        problems = []
        for entry, model, root in self._settings:
            same_engine = engine_key(entry.config, entry.root) == engine_key(model, root)
            if not (entry.is_loaded and same_engine):  # it may have been loaded meanwhile
                continue
            try:
                self._steps.append(await self._starter.prepare(entry, model))
            except ConfigError as error:
                problems += error.problems
            except ServingError as error:
                index = self._config.models.index(model)
                problems.append(self._config.origins.problem(("models", index), error.message))
        if problems:
            raise ConfigError(problems)

    def apply(self) -> list[tuple[ModelEntry, ModelEntry | None]]:
        """Change the entries that stay; returns those to be retired, each with its successor."""
        for step in self._steps:
            step()
        for entry, model, root in self._settings:
            if entry.is_active and entry.config != model:  # it has begun to load meanwhile
                self.entries[model.name] = new = ModelEntry(model, root)
                self._replaced.append((entry, new))
            else:
                entry.root = root
                entry.configure(model)
        return self._replaced


class PresetChange:
    """The files of the presets in use, read again. One that is gone stays as it was."""

    def __init__(
        self, models: Collection[ModelEntry], others: Preset | None, config: Config
    ) -> None:
        """`others`: the preset of models that are added later."""
        self._base = config.base
        self._in_use = {p.name for p in (others, *(model.preset for model in models)) if p}
        self._files: dict[str, Path] = {}
        self._now: dict[str, Preset] = {}

    async def read(self) -> None:
        """Read the files on a thread. `ConfigError` for those that are invalid now."""
        await asyncio.to_thread(self._read)

    def _read(self) -> None:
        problems: list[Problem] = []
        self._files = preset_files(self._base)
        for name in self._files.keys() & self._in_use:
            try:
                self._now[name] = load_preset(name, self._base)
            except ConfigError as error:
                problems += error.problems
        if problems:
            raise ConfigError(problems)

    def check(self, models: Collection[ModelEntry]) -> None:
        """`ConfigError` for presets that do not fit a loaded model."""
        problems: list[Problem] = []
        for model in models:
            preset = self.of(model.preset)
            if preset and preset.name:
                try:
                    model.check_preset(preset)
                except ServingError as error:
                    file = str(self._files[preset.name])
                    problems.append(Problem(file, "", error.message))
        if problems:
            raise ConfigError(problems)

    def of(self, preset: Preset | None) -> Preset | None:
        """What has come of a preset; None if its content is the same."""
        now = self._now.get(preset.name) if preset and preset.name else None
        same = now and preset and now.overrides.written == preset.overrides.written
        return None if same else now

    def apply(self, models: Collection[ModelEntry]) -> Iterator[str]:
        """Make them use what has changed; yields the name of each that does."""
        for model in models:
            if preset := self.of(model.preset):
                model.use_preset(preset)
                yield model.name
