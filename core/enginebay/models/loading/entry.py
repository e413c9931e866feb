"""One model of the config: what is known of it, and how requests are answered."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path
from typing import Literal

from enginebay.config.schema import ModelConfig, resolved_path
from enginebay.contract.errors import ModelNotFoundError
from enginebay.contract.estimates import MemoryUse
from enginebay.contract.types import EngineStats, ModelInfo
from enginebay.models.files.own_templates import own_templates
from enginebay.models.loading.formats import format_choice
from enginebay.models.loading.running_backends import Backends, StartedBackend
from enginebay.models.loading.state import ModelState
from enginebay.models.loras import Loras
from enginebay.models.overrides import Overrides
from enginebay.models.presets import Preset
from enginebay.models.served import ServedModel
from enginebay.models.template.chat_formats import ChatFormats
from enginebay.models.template.template import template_path
from enginebay.plugins import Plugins

logger = logging.getLogger(__name__)

Source = Literal["config", "folder"]
"""Whether the config has a model, or it lies in the models folder."""

ReportModelProgress = Callable[[str, str, float], None]
"""`report(model, stage, fraction)`; may be called on any thread."""


class ModelEntry(ModelState):
    """One model that is configured or lies in the models folder, and its state.

    `served` is a request's view of it. `root`: the entry at the end of its `like` chain, whose
    backend it shares if possible. `retired`: new requests do not find it; `after`: what has to end
    before it is loaded. `stand_in`: the entry before it, which answers until this one is loaded.
    """

    def __init__(
        self, config: ModelConfig, root: str | None = None, *, source: Source = "config"
    ) -> None:
        super().__init__(config)
        self.source = source
        self.root = root or config.name
        self.created = int(time.time())
        self.last_used: int | None = None
        self.retired = False
        self.after: asyncio.Task[None] | None = None
        self.stand_in: ModelEntry | None = None
        self._info: ModelInfo | None = None
        self._formats: ChatFormats | None = None
        self.template = config.chat_template
        self.own_templates: Mapping[Path, bytes] = {}  # as they were loaded
        self.preset: Preset | None = None
        self.overrides = Overrides(config.sampling.overrides())

    @property
    def idle_timeout(self) -> float:
        """Seconds without a request after which it is unloaded; infinite for never."""
        if self.config.pinned:
            return inf
        return self.stay.seconds(
            self.config.idle_timeout or inf, configured=self.source == "config"
        )

    @property
    def memory(self) -> MemoryUse | None:
        """Its memory use, with those that share its backend; None unless it is loaded.

        That of a model on other machines is what these say, and None if they do not.
        """
        if self.started and self.started.backend.elsewhere:
            return self.started.backend.memory
        return self.started.memory if self.started else None

    @property
    def loras(self) -> Loras:
        """The LoRAs of its backend; none unless it is loaded."""
        return self.started.loras if self.started else Loras()

    @property
    def running(self) -> int:
        """Running choices of its requests, including its adapters'."""
        return self.started.gate.running_of(self.config.name) if self.started else 0

    @property
    def waiting(self) -> int:
        """Its waiting requests, including its adapters'."""
        return self.started.gate.waiting_of(self.config.name) if self.started else 0

    @property
    def stats(self) -> EngineStats | None:
        """Its engine's latest stats; None without an engine or stats."""
        return self.started.backend.stats if self.started else None

    @property
    def context_length(self) -> int | None:
        """Tokens of prompt and completion together; None until known."""
        return (self._info.context_length or None) if self._info else None

    @property
    def makes_embeddings(self) -> bool | None:
        """Whether it supports embeddings; None until it has been loaded."""
        return self._info.embedding_size is not None if self._info else None

    @property
    def serves_chats(self) -> bool | None:
        """Whether it has a chat template or takes messages; None until it has been loaded."""
        if self._info is None or self._formats is None:
            return None
        has_template = bool(self._formats.templates.names)
        return self._info.generates and (self._info.chats or has_template)

    @property
    def info(self) -> ModelInfo | None:
        """What is known of it; None until it has been loaded."""
        return self._info

    @property
    def adapters(self) -> tuple[str, ...]:
        """LoRA adapters, which clients may send as `model`; known once it has been loaded."""
        return (*self._info.adapters, *self.loras.adapters) if self._info else ()

    def served(self, adapter: str | None = None, asked: str | None = None) -> ServedModel:
        """The model, or one of its adapters, in its current state, for one request.

        Raises `BackendUnavailableError` unless it can answer, `ModelNotFoundError` if the adapter
        no longer exists.
        """
        self.require_ready(asked)
        assert self.started
        assert self._info
        assert self._formats
        if adapter and adapter not in self.adapters:
            raise ModelNotFoundError(
                f"model {self.name!r} has no adapter {adapter!r}", param="model"
            )
        return ServedModel(
            name=adapter or self.name,
            asked=asked or adapter or self.name,
            adapter=adapter,
            config=self.config,
            info=self._info,
            backend=self.started.backend,
            gate=self.started.gate,
            loras=self.started.loras,
            formats=self._formats,
            template=self.template,
            overrides=self.overrides,
        )

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

    def own_templates_are_edited(self, base: Path) -> bool:
        """Whether the model's own templates are in use, and their files have changed since."""
        path = template_path(self.template, base) if self.template else None
        if not self.is_loaded or path or not self.own_templates:
            return False
        return own_templates(Path(resolved_path(self.config.path, base))) != self.own_templates

    def template_is_edited(self, base: Path) -> bool:
        """Whether the file of the template in use has another text now; not if it is gone."""
        path = template_path(self.template, base) if self.template and self.is_loaded else None
        usual = self.served().templates.choose(with_tools=False) if path else None
        return bool(path and usual and path.read_text(encoding="utf-8") != usual.template.source)

    async def close(self, backends: Backends, reason: str, *, stopping: bool = False) -> None:
        """As `ModelState.close`; the processes that render its templates end, too."""
        try:
            await super().close(backends, reason, stopping=stopping)
        finally:
            if self._formats:
                self._formats.templates.end_processes()

    def become_ready(self, started: StartedBackend, formats: ChatFormats, preset: Preset) -> None:
        """Mark it as ready. `InvalidRequestError`, and no change, if the preset does not fit it."""
        self._info = started.info
        self.use_preset(preset)
        self._formats, self.template = formats, self.config.chat_template
        self._become_ready(started)
