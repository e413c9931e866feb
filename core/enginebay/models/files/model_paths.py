"""Where the files of a model are: on this machine, or on a hub."""

from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from enginebay.config.problems import KeyPath
from enginebay.config.schema import Config, ModelConfig, resolved_path
from enginebay.models.downloads import SCHEME, Form, HubName, find_local, hub_names, places
from enginebay.models.files.recognise import form_of
from enginebay.plugins import Plugins


@dataclass(frozen=True, slots=True)
class HubPath:
    """A name on a hub, where it stands in a model's entry, and what the backend makes of it."""

    key: KeyPath
    text: str
    form: Form

    @property
    def is_lora(self) -> bool:
        """Whether its files are kept among LoRAs."""
        return "adapters" in self.key


def hub_paths(config: ModelConfig, plugins: Plugins) -> Iterator[HubPath]:
    """The names on a hub that a model's files are given as; the model's own is the first."""
    for key, text in hub_names(config):
        form = form_of(config.backend, plugins)
        if "mmproj" in key:
            form = "mmproj"
        elif "adapters" in key and form == "folder":
            form = "adapter"
        yield HubPath(key, text, form)


class ModelPaths:
    """Of a config, whose relative paths start at the folder `base`. They block briefly."""

    def __init__(self, config: Config, plugins: Plugins) -> None:
        self.base = config.base
        self._plugins = plugins
        self._places = places(config)
        self.use_config(config)

    def use_config(self, config: Config) -> None:
        """Save sequences of models that are loaded from now on where this config says."""
        self.kv_store = config.loading.kv_store(self.base)

    def local(self, path: str, backend: str) -> str:
        """The absolute path of a model of this backend; URLs are unchanged.

        So are names on a hub (`hf://`) until the model has been downloaded; then it is where its
        files are. Reads small files for these.
        """
        if path.startswith(SCHEME):
            return self._found(HubPath(("path",), path, form_of(backend, self._plugins)))
        return resolved_path(path, self.base)

    def localized(self, config: ModelConfig) -> ModelConfig:
        """The same model, whose `path` and names on a hub in its options are such paths."""
        options = deepcopy(config.options)
        for each in hub_paths(config, self._plugins):
            where, *keys = each.key
            place: Any = options
            for key in keys[:-1]:
                place = place[key]
            if where == "options":
                place[keys[-1]] = self._found(each)
        path = self.local(config.path, config.backend)
        return config.model_copy(update={"path": path, "options": options})

    def _found(self, path: HubPath) -> str:
        folder = self._places.loras if path.is_lora else self._places.models
        with suppress(ValueError):  # no such name can be, which loading it will say
            if found := find_local(folder, HubName.parse(path.text), path.form):
                return str(found.path)
        return path.text
