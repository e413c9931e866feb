"""The models of the config: loading them, finding them by name, what state each is in."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from copy import copy
from pathlib import Path
from typing import Literal, TypeVar

from core.backend import Backend
from core.chat.template import ChatTemplate, template_path
from core.config.check import validated_options
from core.config.schema import Config, ModelConfig, resolved_path
from core.engine import EngineBackend
from core.errors import BackendUnavailableError, InvalidRequestError, ModelNotFoundError
from core.parsing import ReasoningFormat, ToolFormat
from core.plugins import Plugins
from core.types import BackendSettings, ModelInfo

logger = logging.getLogger(__name__)

State = Literal["loading", "ready", "failed"]
ReportModelProgress = Callable[[str, str, float], None]
"""`report(model, stage, fraction)`; may be called on any thread."""


class LoadedModel:
    """One entry of `models` in the config and what became of it.

    `info`, `backend` and `template` raise `BackendUnavailableError` until the model is ready.
    """

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.name = config.name
        self.adapter: str | None = None
        self.created = int(time.time())
        self._state: State = "loading"
        self.stage = "waiting"
        self.progress = 0.0
        self._error: str | None = None
        self.reasoning_name: str | None = None
        self.tools_name: str | None = None
        self.reasoning: ReasoningFormat | None = None
        self.tools: ToolFormat | None = None
        self._backend: Backend | None = None
        self._info: ModelInfo | None = None
        self._template: ChatTemplate | None = None

    @property
    def restarting(self) -> str | None:
        """Why the engine of a model that was ready is being started again; None if it is not."""
        if self._state != "ready" or not isinstance(self._backend, EngineBackend):
            return None
        return self._backend.restarting

    @property
    def state(self) -> State:
        """`ready` when it can answer; a model whose engine is started again is `loading` again."""
        return "loading" if self.restarting else self._state

    @property
    def error(self) -> str | None:
        """What is wrong with a model that failed, or is restarting."""
        return f"restarting: {self.restarting}" if self.restarting else self._error

    @property
    def backend(self) -> Backend:
        """The backend that answers for this model."""
        self.require_ready()
        assert self._backend is not None
        return self._backend

    @property
    def info(self) -> ModelInfo:
        """What the backend said of the model."""
        self.require_ready()
        assert self._info is not None
        return self._info

    @property
    def context_length(self) -> int | None:
        """Tokens of prompt and completion together; None until the model is loaded."""
        return self._info.context_length if self._info else None

    @property
    def template(self) -> ChatTemplate:
        """The chat template: the config's, else the model's own."""
        self.require_ready()
        if self._template is None:
            raise InvalidRequestError(
                f"model {self.name!r} has no chat template: use /v1/completions, or name one as "
                "`chat_template` in the config",
                param="model",
            )
        return self._template

    @property
    def adapters(self) -> tuple[str, ...]:
        """LoRA adapters, which clients may send as `model`; none until the model is loaded."""
        return self._info.adapters if self._info else ()

    def adapted(self, adapter: str) -> "LoadedModel":
        """The same model as one of its adapters makes it, as it is now."""
        model = copy(self)
        model.name = model.adapter = adapter
        return model

    def require_ready(self) -> None:
        """Raise `BackendUnavailableError` unless the model can answer."""
        if self.restarting:
            raise BackendUnavailableError(
                f"model {self.name!r} is restarting, try again soon; {self.restarting}"
            )
        if self.state == "loading":
            percent = f"{self.progress:.0%}"
            raise BackendUnavailableError(
                f"model {self.name!r} is still loading ({self.stage}, {percent}); try again soon"
            )
        if self.state == "failed":
            raise BackendUnavailableError(f"model {self.name!r} is not available: {self.error}")

    def fail(self, error: str) -> None:
        """Take note of a dead engine: the model is out of service, unless it is started again."""
        if not isinstance(self._backend, EngineBackend):
            self._fail(error)

    def _fail(self, error: str) -> None:
        self._state, self._error = "failed", error

    async def load(
        self, plugins: Plugins, base: Path, report_progress: ReportModelProgress
    ) -> None:
        """Create and start the backend. A failure is kept in `error`, not raised."""
        try:
            await self._load(plugins, base, report_progress)
        except BackendUnavailableError as error:
            self._fail(error.message)
            logger.error("model %s: %s", self.name, error.message)
        except Exception as error:
            self._fail(f"{type(error).__name__}: {error}")
            logger.exception("model %s could not be loaded", self.name)
        finally:
            report_progress(self.name, self.state, 1.0)

    async def _load(
        self, plugins: Plugins, base: Path, report_progress: ReportModelProgress
    ) -> None:
        def report(stage: str, fraction: float) -> None:
            self.stage, self.progress = stage, fraction
            report_progress(self.name, stage, fraction)

        entry = plugins.backends.get(self.config.backend)
        if entry is None:
            installed = ", ".join(plugins.backends) or "none"
            raise BackendUnavailableError(
                f"unknown backend {self.config.backend!r}; installed: {installed}"
            )
        settings = BackendSettings(
            name=self.name,
            path=resolved_path(self.config.path, base),
            base=str(base),
            options=validated_options(self.config, entry),
            report_progress=report,
            isolation=self.config.isolation,
        )
        report("starting", 0.0)
        self._backend = entry.create(settings)
        self._require_isolation(self._backend)
        info = await self._backend.start()
        self._template = self._load_template(info, base)
        source = self._template.source if self._template else ""
        self.reasoning_name, self.reasoning = chosen_format(
            self.config.reasoning, plugins.reasoning.items(), source
        )
        self.tools_name, self.tools = chosen_format(
            self.config.tools, plugins.tools.items(), source
        )
        self._info = info
        self._state, self.stage = "ready", "ready"
        logger.info("model %s is ready", self.name)

    def _load_template(self, info: ModelInfo, base: Path) -> ChatTemplate | None:
        source = info.chat_template
        if name := self.config.chat_template:
            path = template_path(name, base)
            if path is None:
                raise BackendUnavailableError(f"there is no chat template {name!r}")
            source = path.read_text(encoding="utf-8")
        return ChatTemplate(source, info.special_tokens) if source is not None else None

    def _require_isolation(self, backend: Backend) -> None:
        wanted = self.config.isolation
        runs = backend.isolation if isinstance(backend, EngineBackend) else None
        if wanted not in (None, runs):
            raise BackendUnavailableError(
                f"the backend {self.config.backend!r} cannot run with `isolation: {wanted}`; "
                "delete that line from the config"
            )

    async def close(self) -> None:
        """Unload the model."""
        self._fail("the model was unloaded")
        if self._backend:
            await self._backend.close()
            self._backend = None


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


Format = TypeVar("Format", ReasoningFormat, ToolFormat)


def chosen_format(
    wanted: str, registered: Iterable[tuple[str, Format]], template: str
) -> tuple[str | None, Format | None]:
    """The format the config asks for by name; with `auto`, the first one the template matches."""
    if wanted == "none":
        return None, None
    for name, format in registered:
        if name == wanted or (wanted == "auto" and format.matches(template)):
            return name, format
    if wanted != "auto":
        raise BackendUnavailableError(f"there is no reasoning or tool format {wanted!r}")
    return None, None
