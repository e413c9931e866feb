"""One model of the config: loading it, what state it is in, what is known of it."""

import logging
import time
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Literal

from core.backend import Backend
from core.chat.features import TemplateFeatures
from core.chat.formats import ChatFormats, FormatChoice
from core.chat.templates import DEFAULT, ModelTemplates
from core.config.check import settings_of_prompts, validated_options
from core.config.presets import Preset, load_preset
from core.config.problems import ConfigError
from core.config.schema import ModelConfig, resolved_path
from core.errors import BackendUnavailableError, InvalidRequestError, encodable
from core.models.loras import Loras
from core.models.traffic import Traffic
from core.overrides import Overrides
from core.parsing import ReasoningFormat, ToolFormat
from core.plugins import Plugins
from core.queueing import Gate, with_headroom
from core.types import BackendSettings, ModelInfo

logger = logging.getLogger(__name__)

State = Literal["loading", "ready", "failed"]
ReportModelProgress = Callable[[str, str, float], None]
"""`report(model, stage, fraction)`; may be called on any thread."""


class LoadedModel:
    """One entry of `models` in the config and what became of it.

    `info`, `backend` and `templates` raise `BackendUnavailableError` until the model is ready.
    `gate` is where requests wait for their turn at the engine; adapters have the model's.
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
        self.loras = Loras()
        self.traffic = Traffic()
        self._backend: Backend | None = None
        self._info: ModelInfo | None = None
        self._formats: ChatFormats | None = None
        self.template = config.chat_template
        self.gate = Gate(max_queue=config.max_queue)
        self._preset: Preset | None = None
        self.overrides = Overrides(config.sampling.overrides())

    @property
    def unavailable(self) -> str | None:
        """Why a model that was ready cannot answer for now; None if it can."""
        return self._backend.unavailable if self._backend and self._state == "ready" else None

    @property
    def state(self) -> State:
        """`ready` when it can answer; one that cannot for now is `loading` again."""
        return "loading" if self.unavailable else self._state

    @property
    def error(self) -> str | None:
        """What is wrong with a model that failed, or cannot answer for now."""
        error = self.unavailable or self._error
        return error and encodable(error)

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
        """Tokens of prompt and completion together; None until that is known."""
        return (self._info.context_length or None) if self._info else None

    @property
    def formats(self) -> ChatFormats:
        """How its chats are written and read."""
        self.require_ready()
        assert self._formats is not None
        return self._formats

    @property
    def templates(self) -> ModelTemplates:
        """The chat templates: the config's, else the model's own; there may be none."""
        return self.formats.templates

    @property
    def template_name(self) -> str | None:
        """The name of the usual template, as `load_templates` reads it; None without one."""
        usual = self.templates.choose(with_tools=False)
        return (Path(self.template).stem if self.template else DEFAULT) if usual else None

    def chat_template(
        self, *, with_tools: bool = False, asked: str | None = None, allow_source: bool = False
    ) -> TemplateFeatures:
        """The template of a chat request (`ModelTemplates.choose`); an error if there is none."""
        chosen = self.templates.choose(
            with_tools=with_tools, asked=asked, allow_source=allow_source
        )
        if chosen is not None:
            return chosen
        if self.templates.names:
            raise InvalidRequestError(
                f"model {self.name!r} has no default chat template: name one of "
                f"{', '.join(self.templates.names)}",
                param="chat_template",
            )
        raise InvalidRequestError(
            f"model {self.name!r} has no chat template: use /v1/completions, or name one as "
            "`chat_template` in the config",
            param="model",
        )

    @property
    def reasoning(self) -> ReasoningFormat | None:
        """The format of its reasoning."""
        return self.formats.reasoning.format

    @property
    def reasoning_name(self) -> str | None:
        """The name of that format."""
        return self.formats.reasoning.name

    @property
    def tools(self) -> ToolFormat | None:
        """The format of its tool calls."""
        return self.formats.tools.format

    @property
    def tools_name(self) -> str | None:
        """The name of that format."""
        return self.formats.tools.name

    @property
    def adapters(self) -> tuple[str, ...]:
        """LoRA adapters, which clients may send as `model`; none until the model is loaded."""
        return (*self._info.adapters, *self.loras.adapters) if self._info else ()

    @property
    def applied_adapter(self) -> str | None:
        """The adapter that a request for this model gets: what it asks for, else its LoRAs."""
        return self.adapter or self.loras.applied

    def adapted(self, adapter: str) -> "LoadedModel":
        """The same model as one of its adapters makes it, as it is now."""
        model = copy(self)
        model.name = model.adapter = adapter
        return model

    @property
    def preset(self) -> Preset:
        """The sampling params that were chosen over those of the config."""
        return self._preset or Preset()

    def use_preset(self, preset: Preset) -> None:
        """Override sampling params of later requests, until another one is chosen."""
        self.check_preset(preset)
        self._preset = preset
        self.overrides = preset.overrides.over(Overrides(self.config.sampling.overrides()))
        for note in preset.overrides.notes:
            logger.warning("model %s: %s", self.name, note)

    def check_preset(self, preset: Preset) -> None:
        """`InvalidRequestError` if it has tokens that the model, as far as known, does not have."""
        if self._info and not self._info.chats:
            preset.overrides.check_vocabulary(self._info.vocab_size)

    def snapshot(self) -> "LoadedModel":
        """The same model with the chat template it has now, whatever is switched meanwhile."""
        return copy(self)

    async def use_template(self, name: str | None, plugins: Plugins, base: Path) -> None:
        """Write and read later chats by this template; None: as the config says.

        Until the model is unloaded. `TemplateError` for one that does not compile.
        """
        template = name or self.config.chat_template
        choice = format_choice(self.config, plugins, base)
        self._formats = await choice.find(self.info, self.backend, template)
        self.template = template

    def require_ready(self) -> None:
        """Raise `BackendUnavailableError` unless the model can answer."""
        if self.unavailable:
            raise BackendUnavailableError(
                f"model {self.name!r} cannot answer now, try again soon; {self.unavailable}"
            )
        if self.state == "loading":
            percent = f"{self.progress:.0%}"
            raise BackendUnavailableError(
                f"model {self.name!r} is still loading ({self.stage}, {percent}); try again soon"
            )
        if self.state == "failed":
            raise BackendUnavailableError(f"model {self.name!r} is not available: {self.error}")

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
            if self._state == "failed":
                await self._give_up()
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
        if info.chats:
            self._require_no_prompts(info)
        self.template = self.config.chat_template
        choice = format_choice(self.config, plugins, base)
        self._formats = await choice.find(info, self._backend, self.template)
        self._info = info
        self.gate.open(self.config.max_running or with_headroom(info.max_batch_size))
        self._use_chosen_preset(base)
        self._state, self.stage, self.progress = "ready", "ready", 1.0
        logger.info("model %s is ready; %s", self.name, _sampling_defaults(info, self.config))

    def _use_chosen_preset(self, base: Path) -> None:
        """That which was switched to last, else the config's."""
        name = self._preset.name if self._preset else self.config.sampling_preset
        try:
            preset = self._preset or (load_preset(name, base) if name else Preset())
            self.use_preset(preset)
        except (ConfigError, InvalidRequestError) as error:
            raise BackendUnavailableError(
                f"the sampling preset {name!r} cannot be used: {error}"
            ) from error

    def _require_isolation(self, backend: Backend) -> None:
        wanted = self.config.isolation
        if wanted not in (None, backend.isolation):
            raise BackendUnavailableError(
                f"the backend {self.config.backend!r} cannot run with `isolation: {wanted}`; "
                "delete that line from the config"
            )

    def _require_no_prompts(self, info: ModelInfo) -> None:
        renders = "chat_template_kwargs" not in info.unsupported
        if settings := settings_of_prompts(self.config, renders=renders):
            raise BackendUnavailableError(
                f"the backend {self.config.backend!r} hands messages on; the prompt is rendered "
                f"and the answer read elsewhere, so nothing comes of: {', '.join(settings)}; "
                "delete that from the config, or have the backend take prompts, if it has an "
                "option for that"
            )

    async def close(self) -> None:
        """Unload the model."""
        self._fail("the model was unloaded")
        self.gate.close(BackendUnavailableError(f"model {self.name!r} was unloaded"))
        await self._close_backend()

    async def _give_up(self) -> None:
        """Free the memory of a model that nobody can ask, as far as it was loaded."""
        try:
            await self._close_backend()
        except Exception:
            logger.exception("model %s could not be closed", self.name)

    async def _close_backend(self) -> None:
        backend, self._backend = self._backend, None
        self.loras = Loras()
        if backend:
            await backend.close()


def format_choice(config: ModelConfig, plugins: Plugins, base: Path) -> FormatChoice:
    """What there is to choose from for the chats of a model, and what the config says of it."""
    return FormatChoice(
        reasoning=config.reasoning,
        tools=config.tools,
        reasoning_formats=plugins.reasoning,
        tool_formats=plugins.tools,
        base=base,
    )


def _sampling_defaults(info: ModelInfo, config: ModelConfig) -> str:
    """What requests get that do not say, and where it comes from."""
    of_model = {name: f"{value} (model)" for name, value in info.defaults.items()}
    of_config = {name: f"{value} (config)" for name, value in config.sampling.params().items()}
    chosen = (of_model | of_config).items()
    texts = (f"{name}={text}" for name, text in chosen)
    return f"sampling defaults: {', '.join(texts) or 'none'}"
