"""The folder of models that can be loaded by name without being configured."""

import logging
from pathlib import Path

from core.config.schema import ModelConfig
from core.contract.errors import InvalidRequestError, ModelNotFoundError
from core.plugins import Plugins

logger = logging.getLogger(__name__)


class ModelFolder:
    """The entries of a folder, by name; nothing outside it can be named.

    The methods read names and small files, so they block briefly.
    """

    def __init__(self, folder: Path, plugins: Plugins) -> None:
        self._folder = folder
        self._plugins = plugins

    def names(self) -> list[str]:
        """Files and folders that a backend recognises as models."""
        return [name for name, path in self._entries().items() if self._backend_for(path)]

    def path(self, name: str) -> Path:
        """Where the entry of that name is. Raises `ModelNotFoundError`."""
        entries = self._entries()
        if name not in entries:
            known = ", ".join(self.names()) or "no model"
            raise ModelNotFoundError(
                f"the model {name!r} does not exist; {self._folder} has {known}", param="name"
            )
        return entries[name]

    def config(self, name: str, backend: str | None = None) -> ModelConfig:
        """A config for that entry, with this backend or the one that recognises it.

        Raises `ModelNotFoundError`, and `InvalidRequestError` if no backend recognises it.
        """
        path = self.path(name)
        chosen = backend or self._backend_for(path)
        if chosen is None:
            installed = ", ".join(self._plugins.backends) or "none"
            raise InvalidRequestError(
                f"no backend recognises {path}; name one as `backend`, installed: {installed}",
                param="backend",
            )
        return ModelConfig(name=name, backend=chosen, path=str(path), load="command")

    def _entries(self) -> dict[str, Path]:
        """Entries by name, except hidden or unprintable ones: paths are never built from names."""
        if not self._folder.is_dir():
            return {}
        return {
            path.name: path
            for path in sorted(self._folder.iterdir())
            if path.name[:1] not in "._" and path.name.isprintable()
        }

    def _backend_for(self, path: Path) -> str | None:
        for name, entry in self._plugins.backends.items():
            try:
                if entry.serves and entry.serves(path):
                    return name
            except Exception:  # a plugin's own code
                logger.exception("the backend %s failed to check whether it serves %s", name, path)
        return None
