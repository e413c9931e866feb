"""Reading the config again while the server runs."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from enginebay.config.load import read_again
from enginebay.config.problems import ConfigError
from enginebay.config.schema import Config
from enginebay.config.section import Section
from enginebay.models.check_config import check_config
from enginebay.models.config_change import ModelChanges
from enginebay.models.registry import Models
from enginebay.plugins import Plugins

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What a reload has changed. `needs_restart`: keys whose new values apply after a restart."""

    models: ModelChanges
    needs_restart: list[str]


class Reload:
    """Applies the config's file to a running server.

    Its models, `loading` and `server.api_keys` change at once; everything else of `config`, which
    the whole server shares, stays as it was at the start.
    """

    def __init__(
        self,
        config: Config,
        plugins: Plugins,
        models: Models,
        use_keys: Callable[[Config], None],
    ) -> None:
        """`use_keys`: called with a config whose API keys are to be the valid ones."""
        self._config = config
        self._plugins = plugins
        self._models = models
        self._use_keys = use_keys
        self._turn = asyncio.Lock()

    async def run(self) -> Reloaded:
        """Read the file again. `ConfigError` with all problems, and no change, if it is invalid."""
        async with self._turn:
            new = await asyncio.to_thread(self._read)
            changes = await self._models.use_config(new)
            needs_restart = list(self._differences(new))
            if new.server.api_keys != self._config.server.api_keys:
                self._config.server.api_keys = new.server.api_keys
                self._use_keys(new)
                logger.info("config: `server.api_keys` has changed")
            if new.loading != self._config.loading:
                logger.info("config: `loading` has changed: %s", _changed(self._config, new))
            self._config.models, self._config.loading = new.models, new.loading
            self._config.use_origins(new.origins)
        _log(changes, needs_restart)
        return Reloaded(changes, needs_restart)

    async def run_logged(self) -> None:
        """The same for a signal: problems are logged."""
        try:
            await self.run()
        except ConfigError as error:
            for problem in error.problems:
                logger.error("%s", problem)
            logger.error("the config is invalid; the one before stays in effect")

    def _read(self) -> Config:
        config = read_again(self._config)
        if problems := check_config(config, self._plugins):
            raise ConfigError(problems)
        return config

    def _differences(self, new: Config) -> Iterator[str]:
        """Keys that are different in the file, and that only a start reads."""
        for section, before in self._config:
            after = getattr(new, section)
            if section in ("models", "loading") or before == after:
                continue
            if not isinstance(before, Section) or not isinstance(after, Section):
                yield section  # which only one of them has
                continue
            for key in type(before).model_fields:
                if key != "api_keys" and getattr(before, key) != getattr(after, key):
                    yield f"{section}.{key}"


def _changed(before: Config, after: Config) -> str:
    old, new = before.loading.model_dump(), after.loading.model_dump()
    return ", ".join(f"{key}: {value}" for key, value in new.items() if old[key] != value)


def _log(changes: ModelChanges, needs_restart: list[str]) -> None:
    for what, names in asdict(changes).items():
        if names:
            logger.info("config: models %s: %s", what, ", ".join(names))
    if needs_restart:
        logger.warning("config: these take effect after a restart: %s", ", ".join(needs_restart))
    if not (changes.added or changes.removed or changes.changed or needs_restart):
        logger.info("config: read again, models are as before")
