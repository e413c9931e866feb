"""The models of the config: loading them and finding them by name."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from core.config.schema import Config
from core.errors import BackendUnavailableError, ModelNotFoundError
from core.models.loaded import LoadedModel, ReportModelProgress
from core.plugins import Plugins


class Models:
    """All models of a config, in its order; the first one is the default."""

    def __init__(
        self, config: Config, plugins: Plugins, report_progress: ReportModelProgress
    ) -> None:
        self._base = config.base
        self._plugins = plugins
        self._report_progress = report_progress
        self._models = {model.name: LoadedModel(model) for model in config.models}
        self._loaded = asyncio.Event()

    def all(self) -> list[LoadedModel]:
        """Every model, in the config's order."""
        return list(self._models.values())

    def get(self, name: str | None) -> LoadedModel:
        """The model a request means, ready to answer; without a name, the first one."""
        if not self._models:
            raise BackendUnavailableError(
                "no model is configured; add one under `models` in the config"
            )
        model = self.find(name) if name else self.all()[0]
        model.require_ready()
        return model

    @asynccontextmanager
    async def lease(self, name: str | None) -> AsyncIterator[LoadedModel]:
        """The model a request means, ready to answer as long as the block runs."""
        yield self.get(name)

    def find(self, name: str) -> LoadedModel:
        """The model, or adapter of a model, of that name, in whatever state.

        Raises `ModelNotFoundError`.
        """
        model = self._models.get(name)
        if model is None:
            for base in self.all():
                if name in base.adapters:
                    return base.adapted(name)
            raise ModelNotFoundError(
                f"the model {name!r} does not exist; available: {', '.join(self._models)}",
                param="model",
            )
        return model

    async def load(self) -> None:
        """Load one model after the other."""
        for model in self.all():
            await model.load(self._plugins, self._base, self._report_progress)
        self._loaded.set()

    async def wait_until_loaded(self) -> None:
        """Return when every model is ready or has failed."""
        await self._loaded.wait()

    async def close(self) -> None:
        """Unload every model."""
        for model in self.all():
            await model.close()
