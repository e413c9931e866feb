"""Gets a model ready: its backend, chat formats and preset."""

import logging
from pathlib import Path

from core.config.problems import ConfigError
from core.config.schema import ModelConfig
from core.contract.errors import BackendUnavailableError, InvalidRequestError, ServingError
from core.contract.types import ReportProgress
from core.models.downloads import SCHEME, Downloads, HubName, StoppedError
from core.models.entry import ModelEntry, ReportModelProgress
from core.models.formats import (
    format_choice,
    require_no_prompts,
    require_vocabulary,
    sampling_defaults,
)
from core.models.presets import Preset, load_preset
from core.models.recognise import form_of
from core.models.running_backends import Backends, StartedBackend, quietly
from core.plugins import Plugins

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
        """Download the files of a model whose path is a name on a hub, unless they are here.

        False if that failed: why is kept in its `error`, and what arrived for the next attempt.
        """
        if not config.path.startswith(SCHEME):
            return True
        try:
            await self._downloads.local(
                HubName.parse(config.path),
                form_of(config.backend, self._plugins),
                lambda fraction: self._report(model, "downloading", fraction),
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
        try:
            await self._start(model, report)
        except BackendUnavailableError as error:
            model.fail(error.message)
            logger.error("model %s: %s", model.name, error.message)
            report("failed", 1.0)
        except Exception as error:
            model.fail(f"{type(error).__name__}: {error}")
            logger.exception("model %s could not be loaded", model.name)
            report("failed", 1.0)
        else:
            report("ready", 1.0)

    def _report(self, model: ModelEntry, stage: str, fraction: float) -> None:
        model.progress.report(stage, fraction)
        self._report_progress(model.name, stage, fraction)

    async def _start(self, model: ModelEntry, report: ReportProgress) -> None:
        started = await self._backends.start(model.config, model.root, report)
        try:
            await self._get_ready(model, started)
        except BaseException:
            await quietly(self._backends.stop(started), model.name)
            raise

    async def _get_ready(self, model: ModelEntry, started: StartedBackend) -> None:
        config, info = model.config, started.info
        require_no_prompts(config, info)
        require_vocabulary(config, info)
        choice = format_choice(config, self._plugins, self._base)
        formats = await choice.find(info, started.backend, config.chat_template)
        name = model.preset.name if model.preset else config.sampling_preset
        try:
            model.become_ready(started, formats, self._preset(model))
        except (ConfigError, InvalidRequestError) as error:
            raise BackendUnavailableError(
                f"the sampling preset {name!r} cannot be used: {error}"
            ) from error
        logger.info("model %s is ready; %s", model.name, sampling_defaults(config, info))

    def _preset(self, model: ModelEntry) -> Preset:
        """The preset switched to last, else the config's."""
        name = model.config.sampling_preset
        return model.preset or (load_preset(name, self._base) if name else Preset())
