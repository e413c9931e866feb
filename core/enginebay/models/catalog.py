"""Resolves load commands: which model, with which config."""

import asyncio
from collections.abc import Mapping
from typing import Any

from enginebay.config.engines import engine_config, with_engine_config
from enginebay.config.paths import inside
from enginebay.config.schema import Config, ModelConfig
from enginebay.contract.errors import InvalidRequestError, ModelNotFoundError
from enginebay.models.files.model_paths import ModelPaths
from enginebay.models.loading.entry import ModelEntry
from enginebay.models.registry import Models
from enginebay.models.tabbyapi_parameters import with_parameters
from enginebay.models.template.template import template_path
from enginebay.plugins import Plugins


class Loadable:
    """Configured models and those in the models folder."""

    def __init__(self, config: Config, plugins: Plugins, models: Models) -> None:
        self.folder = models.folder
        self._base = config.base
        self._paths = ModelPaths(config, plugins)
        self._plugins = plugins
        self._models = models

    async def prepare(
        self,
        name: str,
        *,
        backend: str | None = None,
        parameters: Mapping[str, Any],
        options: Mapping[str, Any] | None = None,
        template: str | None = None,
        draft: str | None = None,
    ) -> tuple[ModelEntry, ModelConfig, list[str]]:
        """The model of that name, the config to load it with, and its unsupported parameters.

        Parameters are TabbyAPI's, `options` the backend's own. Raises `ModelNotFoundError` and
        `InvalidRequestError`; nothing has changed then.
        """
        await self._models.look_for(name)
        found = await asyncio.to_thread(self._config, name, backend)
        backends = self._plugins.backends
        config = engine_config(found, backends)
        if backend:
            config = config.model_copy(update={"backend": backend})
        entry = backends.get(config.backend)
        if entry is None:
            installed = ", ".join(backends) or "none"
            raise InvalidRequestError(
                f"unknown backend {config.backend!r}; installed: {installed}",
                param="backend",
            )
        changes: dict[str, Any] = {"options": {**config.options, **(options or {})}}
        if template:
            changes["chat_template"] = self._template(template)
        asked = dict(parameters)
        if draft:
            asked["draft_model_name"] = await asyncio.to_thread(self._draft, draft)
        config, unsupported = with_parameters(config.model_copy(update=changes), entry, asked)
        config = with_engine_config(found, config, backends)
        return self._models.add(config), config, unsupported

    def _config(self, name: str, backend: str | None) -> ModelConfig:
        try:
            model = self._models.find(name)
        except ModelNotFoundError:
            return self.folder.config(name, backend)
        if not self._models.stays(model):
            return self.folder.config(model.config.name, backend)
        if model.wrong:
            raise InvalidRequestError(f"{name!r} has invalid settings: {model.wrong}", param="name")
        return model.configured

    def _draft(self, name: str) -> str:
        """The path of a draft model: a configured model, or one in the folder."""
        try:
            config = self._models.find(name).config
            return self._paths.local(config.path, config.backend)
        except ModelNotFoundError:
            return str(self.folder.path(name))

    def _template(self, name: str) -> str:
        """A template's name; paths to other files are rejected."""
        inside(self._base, name, "prompt_template")
        path = template_path(name, self._base)
        if "/" in name or (path and path.suffix not in (".jinja", ".jinja2")):
            raise InvalidRequestError(
                f"{name!r} is not the name of a chat template", param="prompt_template"
            )
        return name
