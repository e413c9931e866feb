"""Gets a model ready: its backend, chat formats and preset."""

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from enginebay.config.problems import ConfigError
from enginebay.config.schema import ModelConfig, resolved_path
from enginebay.contract.backend_settings import ReportProgress
from enginebay.contract.errors import BackendUnavailableError, InvalidRequestError, ServingError
from enginebay.contract.estimates import MemoryUse
from enginebay.contract.types import ModelInfo
from enginebay.engine.failures import ran_out_of_memory
from enginebay.models.downloads import Downloads, HubName, StoppedError
from enginebay.models.files.model_paths import hub_paths
from enginebay.models.files.own_templates import own_templates
from enginebay.models.loading.entry import ModelEntry, ReportModelProgress
from enginebay.models.loading.formats import (
    format_choice,
    loaded_facts,
    require_no_prompts,
    require_vocabulary,
)
from enginebay.models.loading.memory import gib
from enginebay.models.loading.running_backends import Backends, StartedBackend, quietly
from enginebay.models.presets import Preset, load_preset
from enginebay.models.template.chat_formats import ChatFormats
from enginebay.plugins import Plugins

logger = logging.getLogger(__name__)


class Starter:
    """Starts models; `base` is the folder of the config file."""

    def __init__(
        self,
        backends: Backends,
        downloads: Downloads,
        plugins: Plugins,
        base: Path,
        report_progress: ReportModelProgress,
    ) -> None:
        self._backends = backends
        self._downloads = downloads
        self._plugins = plugins
        self._base = base
        self._report_progress = report_progress

    async def fetch(self, model: ModelEntry, config: ModelConfig) -> bool:
        """Download the files of a model that are names on a hub in its entry, unless they are here.

        False if that failed: why is kept in its `error`, and what arrived for the next attempt.
        """
        if self._backends.run_elsewhere(config):  # so are its files
            return True
        paths = await asyncio.to_thread(lambda: list(hub_paths(config, self._plugins)))

        def report(before: int, fraction: float) -> None:
            self._report(model, "downloading", (before + fraction) / len(paths))

        try:
            for before, path in enumerate(paths):
                await self._downloads.local(
                    HubName.parse(path.text),
                    path.form,
                    partial(report, before),
                    kind="lora" if path.is_lora else "model",
                )
        except (ServingError, StoppedError, ValueError) as error:
            reason = error.message if isinstance(error, ServingError) else str(error)
            logger.error("model %s could not be downloaded: %s", model.name, reason)
            if not model.is_loaded:
                model.fail(reason)
            self._report(model, "failed", 1.0)
            return False
        return True

    async def start(self, model: ModelEntry) -> None:
        """Make a model ready. A failure is kept in its `error`, not raised."""

        def report(stage: str, fraction: float) -> None:
            self._report(model, stage, fraction)

        report("starting", 0.0)
        model.lacked_library = False
        try:
            await self._start(model, report)
        except BackendUnavailableError as error:
            model.fail(error.message)
            model.lacked_library = self.lacks_library(model)
            logger.error("model %s: %s", model.name, error.message)
            report("failed", 1.0)
        except (Exception, SystemExit) as error:
            model.fail(_reason(error))
            self._plugins.blame(error)
            logger.exception("model %s could not be loaded", model.name)
            report("failed", 1.0)
        else:
            report("ready", 1.0)

    async def start_again(self, model: ModelEntry) -> None:
        """Have a loaded model's backend start its engines elsewhere again. Failures are logged."""
        assert model.started
        try:
            await model.started.backend.start_again()
        except BackendUnavailableError as error:
            logger.error("model %s: %s", model.name, error.message)
        self._report(model, "ready", 1.0)

    def _report(self, model: ModelEntry, stage: str, fraction: float) -> None:
        model.progress.report(stage, fraction)
        self._report_progress(model.name, stage, fraction)

    async def _start(self, model: ModelEntry, report: ReportProgress) -> None:
        began = time.perf_counter()
        started = await self._backends.start(model.config, model.root, report)
        try:
            await self._get_ready(model, started)
        except BaseException:
            await quietly(self._backends.stop(started), model.name)
            raise
        seconds = time.perf_counter() - began
        facts = "; ".join(loaded_facts(model.served()))
        logger.info("model %s: loaded in %.1f s%s; %s", model.name, seconds, _size(model), facts)

    def lacks_library(self, model: ModelEntry) -> bool:
        """Whether a library that its backend imports is not installed, as of now."""
        backend = self._plugins.backends.get(model.config.backend)
        return bool(backend and backend.missing())

    async def prepare(self, model: ModelEntry, config: ModelConfig) -> Callable[[], None]:
        """What makes a loaded model go on with another config, which has the same engine.

        Raises `BackendUnavailableError` or a `TemplateError` if it cannot.
        """
        assert model.started
        started = model.started
        same_preset = config.sampling_preset == model.config.sampling_preset
        same_template = config.chat_template == model.config.chat_template
        template = model.template if same_template else config.chat_template
        preset = self._preset(model.preset if same_preset else None, config, started.info)
        formats = await self._formats(config, started, template)

        def change() -> None:
            if model.started is started:
                started.admit(config)
                model.change(config, formats, template, preset)

        return change

    async def _get_ready(self, model: ModelEntry, started: StartedBackend) -> None:
        config, info = model.config, started.info
        formats = await self._formats(config, started, config.chat_template)
        folder = Path(resolved_path(config.path, self._base))
        model.own_templates = await asyncio.to_thread(own_templates, folder)
        model.become_ready(started, formats, self._preset(model.preset, config, info))

    async def _formats(
        self, config: ModelConfig, started: StartedBackend, template: str | None
    ) -> ChatFormats:
        """How its chats are rendered and read, if the config fits it."""
        require_no_prompts(config, started.info)
        require_vocabulary(config, started.info)
        choice = format_choice(config, self._plugins, self._base)
        return await choice.find(started.info, started.backend, template)

    def _preset(self, chosen: Preset | None, config: ModelConfig, info: ModelInfo) -> Preset:
        """The preset switched to last, else the config's, if it fits the model."""
        name = chosen.name if chosen else config.sampling_preset
        try:
            preset = chosen or (load_preset(name, self._base) if name else Preset())
            if not info.chats:
                preset.overrides.check_vocabulary(info.vocab_size)
        except (ConfigError, InvalidRequestError) as error:
            raise BackendUnavailableError(
                f"the sampling preset {name!r} cannot be used: {error}"
            ) from error
        return preset


def _size(model: ModelEntry) -> str:
    """The memory that a model was measured to use, in parentheses; empty if nobody knows."""
    memory = model.memory or MemoryUse()
    sizes = ((memory.gpu, "of GPU memory"), (memory.ram, "of RAM"))
    known = ", ".join(f"{gib(size)} {kind}" for size, kind in sizes if size)
    return f" ({known})" if known else ""


def _reason(error: BaseException) -> str:
    reason = f"{type(error).__name__}: {error}"
    if not ran_out_of_memory(error):
        return reason
    return (
        f"there was not enough memory to load it ({reason}); lower context_length, cache_tokens or "
        "max_batch_size in its options, or use a smaller or quantized model"
    )
