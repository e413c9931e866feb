"""Where the files of a model are."""

from contextlib import suppress
from pathlib import Path

from core.config.schema import Config, resolved_path
from core.models.downloads import SCHEME, HubName, find_local, places
from core.models.recognise import form_of
from core.plugins import Plugins


class ModelPaths:
    """Of a config, whose relative paths start at the folder `base`."""

    def __init__(self, config: Config, plugins: Plugins) -> None:
        self.base = config.base
        self._plugins = plugins
        self._models: Path = places(config).models
        self.use_config(config)

    def use_config(self, config: Config) -> None:
        """Save sequences of models that are loaded from now on where this config says."""
        self.kv_store = config.loading.kv_store(self.base)

    def local(self, path: str, backend: str) -> str:
        """The absolute path of a model of this backend; URLs are unchanged.

        So are names on a hub (`hf://`) until the model has been downloaded; then it is where its
        files are. Reads small files for these, and blocks briefly.
        """
        if path.startswith(SCHEME):
            form = form_of(backend, self._plugins)
            with suppress(ValueError):  # no such name can be, which loading it will say
                found = find_local(self._models, HubName.parse(path), form)
                return str(found.path) if found else path
        return resolved_path(path, self.base)
