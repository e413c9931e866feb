"""The models of the models folder as entries, which are kept up to date."""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace

from core.config.loading import LoadingConfig
from core.config.problems import ConfigError
from core.config.schema import ModelConfig
from core.models.files.model_folder import FolderModel, ModelFolder
from core.models.loading.entry import ModelEntry

logger = logging.getLogger(__name__)


class FolderModels:
    """An entry for each model of the folder, by name; none unless `loading.from_model_dir`.

    Everything happens on the event loop, but for the reading, which has a thread.
    """

    def __init__(self, folder: ModelFolder, loading: LoadingConfig) -> None:
        self.folder = folder
        self.entries: dict[str, ModelEntry] = {}
        self._loading = loading
        self._known: Mapping[str, FolderModel] = {}
        self._turn = asyncio.Lock()

    def use_config(self, loading: LoadingConfig) -> None:
        """Follow this config from the next `refresh` on."""
        self._loading = loading
        self._known = {}

    def take(self, names: Iterable[str]) -> list[tuple[str, ModelEntry]]:
        """The entries that have these names; from the next `refresh` on others stand for them."""
        return [(name, self.entries.pop(name)) for name in names if name in self.entries]

    async def refresh(self) -> list[ModelEntry]:
        """Look at the folder again; returns the entries of what is no longer there.

        Costs next to nothing if nothing has changed. Of a loaded model only that changes which it
        is loaded with the next time.
        """
        async with self._turn:
            found: Mapping[str, FolderModel] = {}
            if self._loading.from_model_dir:
                found = await asyncio.to_thread(self.folder.models)
            if found is self._known:
                return []
            read = await asyncio.to_thread(self._read, found)
            before, self.entries, self._known = self.entries, {}, found
            for name, (config, wrong) in read.items():
                entry = before.get(name) or ModelEntry(config, source="folder")
                if wrong and wrong != entry.wrong:
                    logger.error("model %s cannot be loaded: %s", name, wrong)
                entry.configure(config, wrong)
                self.entries[name] = entry
            return [entry for name, entry in before.items() if name not in self.entries]

    def _read(self, found: Mapping[str, FolderModel]) -> dict[str, tuple[ModelConfig, str | None]]:
        """The config of each, and what is wrong with its settings. Blocks briefly."""
        defaults = {"load": "request", "idle_timeout": self._loading.model_dir_idle_timeout}
        read: dict[str, tuple[ModelConfig, str | None]] = {}
        for model in found.values():
            try:
                read[model.name] = (self.folder.settled(model, defaults), None)
            except ConfigError as error:
                plain = replace(model, settings=())
                read[model.name] = (self.folder.settled(plain, defaults), str(error))
        return read
