"""One model of the config: its state and what is known about it."""

import asyncio
import logging
import time
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Literal

from core.config.schema import ModelConfig
from core.contract.errors import (
    BackendUnavailableError,
    ModelFailedError,
    ModelNotFoundError,
    encodable,
)
from core.contract.estimates import MemoryUse
from core.contract.types import EngineStats, ModelInfo
from core.models.formats import format_choice
from core.models.loras import Loras
from core.models.overrides import Overrides
from core.models.presets import Preset
from core.models.progress import LoadProgress
from core.models.running_backends import Backends, StartedBackend
from core.models.served import ServedModel
from core.models.template.chat_formats import ChatFormats
from core.models.use import Use
from core.plugins import Plugins

logger = logging.getLogger(__name__)

State = Literal["unloaded", "loading", "ready", "draining", "failed"]
"""`draining`: to be unloaded as soon as its requests have ended."""

ShownState = State | Literal["stuck"]
"""`stuck`: it was ready, but no longer responds."""

Source = Literal["config", "folder"]
"""Whether the config has a model, or it lies in the models folder."""

ReportModelProgress = Callable[[str, str, float], None]
"""`report(model, stage, fraction)`; may be called on any thread."""


class ModelEntry:
    """One model that is configured or lies in the models folder, and its state.

    `served` is a request's view of it. `config` is what it is loaded with, `configured` what it is
    reloaded with; `wrong`: why that cannot be used. `root`: the entry at the end of its `like`
    chain, whose backend it shares if possible. `there` is set while it is in memory, `settled` when
    draining is over. `on_request`: a request may load it, after `failures` in a row not before
    `retry_at` (by the loader's clock), unless it only
    `lacked_library` that is there now. `stuck`: why it does not respond, set by `Watch`.
    `keep_alive`: the idle time that a request asked for, in seconds. `retired`: new requests do not
    find it; `after`: what has to end before it is loaded.
    """

    def __init__(
        self, config: ModelConfig, root: str | None = None, *, source: Source = "config"
    ) -> None:
        self.config = config
        self.configured = config
        self.wrong: str | None = None
        self.source = source
        self.root = root or config.name
        self.name = config.name
        self.created = int(time.time())
        self.loaded_at: int | None = None
        self.last_used: int | None = None
        self.use = Use()
        self.there = asyncio.Event()
        self.settled = asyncio.Event()
        self.on_request = config.load != "command"
        self.failures = 0
        self.retry_at = 0.0
        self.lacked_library = False
        self.keep_alive: float | None = None
        self.retired = False
        self.after: asyncio.Task[None] | None = None
        self.progress = LoadProgress()
        self._state: State = "unloaded"
        self._error: str | None = None
        self.stuck: str | None = None
        self._started: StartedBackend | None = None
        self._info: ModelInfo | None = None
        self._formats: ChatFormats | None = None
        self.template = config.chat_template
        self.preset: Preset | None = None
        self.overrides = Overrides(config.sampling.overrides())

    @property
    def unavailable(self) -> str | None:
        """Why a model that was ready cannot answer for now; None if it can."""
        return self._started.backend.unavailable if self._started else None

    @property
    def state(self) -> State:
        """`ready` if it can answer; if it temporarily cannot, `loading` again."""
        if self.wrong and self._state == "unloaded":
            return "failed"
        return "loading" if self.unavailable and self._state == "ready" else self._state

    @property
    def shown(self) -> tuple[ShownState, str | None]:
        """The state shown to clients, and the error, if any."""
        if self.stuck and self.state == "ready":
            return "stuck", self.stuck
        return self.state, self.error

    @property
    def impaired(self) -> bool:
        """Whether it should answer but does not; a model that is only loading does not count."""
        return self.shown[0] in ("failed", "stuck") or self.unavailable is not None

    @property
    def is_loaded(self) -> bool:
        """Whether it is in memory."""
        return self._started is not None

    @property
    def error(self) -> str | None:
        """The error of a model that failed or temporarily cannot answer."""
        error = self.unavailable or self._error
        if self.wrong and not self.is_loaded:
            error = self.wrong
        return error and encodable(error)

    @property
    def idle_timeout(self) -> float:
        """Seconds without a request after which it is unloaded; infinite for never."""
        if self.config.pinned:
            return inf
        if self.keep_alive is not None:
            return self.keep_alive
        return self.config.idle_timeout or inf

    @property
    def memory(self) -> MemoryUse | None:
        """Its memory use, with those that share its backend; None unless it is loaded."""
        return self._started.memory if self._started else None

    @property
    def loras(self) -> Loras:
        """The LoRAs of its backend; none unless it is loaded."""
        return self._started.loras if self._started else Loras()

    @property
    def started(self) -> StartedBackend | None:
        """The backend that runs it, possibly shared."""
        return self._started

    @property
    def running(self) -> int:
        """Running choices of its requests, including its adapters'."""
        return self._started.gate.running_of(self.config.name) if self._started else 0

    @property
    def waiting(self) -> int:
        """Its waiting requests, including its adapters'."""
        return self._started.gate.waiting_of(self.config.name) if self._started else 0

    @property
    def stats(self) -> EngineStats | None:
        """Its engine's latest stats; None without an engine or stats."""
        return self._started.backend.stats if self._started else None

    @property
    def context_length(self) -> int | None:
        """Tokens of prompt and completion together; None until known."""
        return (self._info.context_length or None) if self._info else None

    @property
    def makes_embeddings(self) -> bool | None:
        """Whether it supports embeddings; None until it has been loaded."""
        return self._info.embedding_size is not None if self._info else None

    @property
    def info(self) -> ModelInfo | None:
        """What is known of it; None until it has been loaded."""
        return self._info

    @property
    def adapters(self) -> tuple[str, ...]:
        """LoRA adapters, which clients may send as `model`; known once it has been loaded."""
        return (*self._info.adapters, *self.loras.adapters) if self._info else ()

    def served(self, adapter: str | None = None) -> ServedModel:
        """The model, or one of its adapters, in its current state, for one request.

        Raises `BackendUnavailableError` unless it can answer, `ModelNotFoundError` if the adapter
        no longer exists.
        """
        self.require_ready()
        assert self._started
        assert self._info
        assert self._formats
        if adapter and adapter not in self.adapters:
            raise ModelNotFoundError(
                f"model {self.name!r} has no adapter {adapter!r}", param="model"
            )
        return ServedModel(
            name=adapter or self.name,
            adapter=adapter,
            config=self.config,
            info=self._info,
            backend=self._started.backend,
            gate=self._started.gate,
            loras=self._started.loras,
            formats=self._formats,
            template=self.template,
            overrides=self.overrides,
        )

    @property
    def is_active(self) -> bool:
        """Whether it is loaded, or about to be, or being unloaded."""
        return self.is_loaded or self._state in ("loading", "draining")

    def change(
        self, config: ModelConfig, formats: ChatFormats, template: str | None, preset: Preset
    ) -> None:
        """Answer later requests by this config, on the same engine."""
        self.config = self.configured = config
        self._formats, self.template = formats, template
        self.use_preset(preset)

    def use_preset(self, preset: Preset) -> None:
        """Override sampling params of later requests, until another preset is chosen."""
        self.check_preset(preset)
        self.preset = preset
        self.overrides = preset.overrides.over(Overrides(self.config.sampling.overrides()))
        for note in preset.overrides.notes:
            logger.warning("model %s: %s", self.name, note)

    def check_preset(self, preset: Preset) -> None:
        """`InvalidRequestError` if it has tokens that the model is known not to have."""
        if self._info and not self._info.chats:
            preset.overrides.check_vocabulary(self._info.vocab_size)

    async def use_template(self, name: str | None, plugins: Plugins, base: Path) -> None:
        """Use this template for later chats; None: the config's.

        Until the model is unloaded. `TemplateError` for one that does not compile.
        """
        template = name or self.config.chat_template
        choice = format_choice(self.config, plugins, base)
        model = self.served()
        self._formats = await choice.find(model.info, model.backend, template)
        self.template = template

    def require_ready(self) -> None:
        """Raise `BackendUnavailableError` unless the model can answer."""
        if self.wrong and not self.is_loaded:
            raise ModelFailedError(f"the settings of {self.name!r} cannot be used: {self.error}")
        if self.unavailable:
            raise BackendUnavailableError(
                f"model {self.name!r} cannot answer now, try again soon; {self.unavailable}"
            )
        match self._state:
            case "loading":
                raise BackendUnavailableError(
                    f"model {self.name!r} is still loading ({self.progress}); try again soon"
                )
            case "ready" | "draining" if not self.is_loaded:  # it is just being closed
                raise BackendUnavailableError(f"model {self.name!r} was unloaded")
            case "failed":
                raise ModelFailedError(f"model {self.name!r} is not available: {self.error}")
            case "unloaded" if self._error:
                raise BackendUnavailableError(f"model {self.name!r} is not available: {self.error}")
            case "unloaded":
                raise BackendUnavailableError(f"model {self.name!r} is not loaded")

    def configure(self, config: ModelConfig, wrong: str | None = None) -> None:
        """Load it with this config the next time; or, if that is `wrong`, not at all."""
        if (config, wrong) == (self.configured, self.wrong):
            return
        self.configured, self.wrong = config, wrong
        if not self.is_loaded and self._state in ("unloaded", "failed"):
            self.config, self.on_request = config, config.load != "command"
            self._state, self._error, self.failures, self.retry_at = "unloaded", None, 0, 0.0

    def begin_loading(self) -> None:
        """Mark it as waiting to be loaded."""
        self._state, self._error = "loading", None
        self.progress.report("waiting", 0.0)

    def become_ready(self, started: StartedBackend, formats: ChatFormats, preset: Preset) -> None:
        """Mark it as ready. `InvalidRequestError`, and no change, if the preset does not fit it."""
        self._info = started.info
        self.use_preset(preset)
        self._started, self._formats = started, formats
        self.template = self.config.chat_template
        self._state, self._error, self.failures = "ready", None, 0
        self.loaded_at = int(time.time())
        self.there.set()

    def fail(self, error: str) -> None:
        """Mark it as failed."""
        self._state, self._error = "failed", error
        self.failures += 1

    def drain(self) -> None:
        """Accept no more requests."""
        self._state = "draining"
        self.settled.clear()

    def resume(self) -> None:
        """Accept requests again."""
        self._state = "ready"
        self.settled.set()

    async def close(self, backends: Backends, reason: str) -> None:
        """Unload the model. `reason` is reported to requests for it."""
        started, self._started = self._started, None
        self.there.clear()
        try:
            if started:
                if self.use.count:  # another entry of this name may share the gate
                    error = BackendUnavailableError(f"model {self.name!r} was unloaded")
                    started.gate.refuse(self.name, error)
                await backends.stop(started)
        finally:
            self.keep_alive = None
            self._state, self._error, self.loaded_at = "unloaded", reason, None
            self.config = self.configured
            self.settled.set()
