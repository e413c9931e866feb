"""The models of the models folder as entries, which are kept up to date."""

import asyncio
import logging
from collections.abc import Iterable, Mapping

from enginebay.config.loading import LoadingConfig
from enginebay.config.model_settings import Settings
from enginebay.config.problems import Problem
from enginebay.models.files.model_folder import FolderModel, ModelFolder
from enginebay.models.loading.entry import ModelEntry

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
        self._refused: frozenset[Problem] = frozenset()
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
            for name, settings in read.items():
                entry = before.get(name) or ModelEntry(settings.config, source="folder")
                wrong = "\n".join(map(str, settings.wrong)) or None
                if wrong and wrong != entry.wrong:
                    logger.error("model %s cannot be loaded: %s", name, wrong)
                entry.configure(settings.config, wrong)
                self.entries[name] = entry
            self._report({problem: None for each in read.values() for problem in each.refused})
            return [entry for name, entry in before.items() if name not in self.entries]

    def _report(self, refused: Mapping[Problem, None]) -> None:
        """Log the settings without effect, each of them once."""
        for problem in refused:
            if problem not in self._refused:
                logger.warning("%s", problem)
        self._refused = frozenset(refused)

    def _read(self, found: Mapping[str, FolderModel]) -> dict[str, Settings]:
        """Each model with its settings. Blocks briefly."""
        defaults = {"load": "request", "idle_timeout": self._loading.model_dir_idle_timeout}
        return {model.name: self.folder.settled(model, defaults) for model in found.values()}
