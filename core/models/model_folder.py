"""Models that are not configured: at a path, or in a folder by name."""

import logging
from pathlib import Path

from core.config.problems import ConfigError, Problem
from core.config.schema import ModelConfig
from core.contract.errors import InvalidRequestError, ModelNotFoundError
from core.plugins import Plugins

logger = logging.getLogger(__name__)


def model_at(path: Path, plugins: Plugins, backend: str | None = None) -> ModelConfig:
    """The model at a path, for this backend or the first one that recognises it.

    Blocks briefly. `ConfigError` if nothing is there, or no backend recognises it.
    """
    backend = backend or _first_backend(path, plugins)
    whole = path.absolute()
    return ModelConfig(name=whole.name or "model", backend=backend, path=str(whole))


def _first_backend(path: Path, plugins: Plugins) -> str:
    installed = ", ".join(plugins.backends) or "none"
    if not path.exists():
        raise ConfigError([Problem("", "", f"there is no file or folder {path}")])
    found = _backend_for(path, plugins)
    if found is None:
        problem = f"no backend recognises {path} as a model; name one of {installed} as its backend"
        raise ConfigError([Problem("", "", problem)])
    return found


def _backend_for(path: Path, plugins: Plugins) -> str | None:
    for name, entry in plugins.backends.items():
        try:
            if entry.serves and entry.serves(path):
                return name
        except Exception:  # a plugin's own code
            logger.exception("the backend %s failed to check whether it serves %s", name, path)
    return None


class ModelFolder:
    """The entries of a folder, by name; nothing outside it can be named.

    The methods read names and small files, so they block briefly.
    """

    def __init__(self, folder: Path, plugins: Plugins) -> None:
        self._folder = folder
        self._plugins = plugins

    def names(self) -> list[str]:
        """Files and folders that a backend recognises as models."""
        return [name for name, path in self._entries().items() if _backend_for(path, self._plugins)]

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
        chosen = backend or _backend_for(path, self._plugins)
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
