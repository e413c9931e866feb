"""Eviction: unloads models so that another one can be loaded."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from core.config.loading import LoadingConfig
from core.contract.errors import BackendUnavailableError
from core.models.clock import Clock
from core.models.entry import ModelEntry
from core.models.memory import MemoryUse, Meter
from core.models.memory_limits import Holder, Limits, first_to_go, gib, holders, taken_by
from core.models.running_backends import Backends

logger = logging.getLogger(__name__)

_REASON = "it was unloaded to make room for another model"


class Unload(Protocol):
    """Unload a model once it is unused; `Loader` decides what happens while it is in use."""

    def __call__(
        self, model: ModelEntry, limit: float, reason: str, *, abort: bool = True
    ) -> Coroutine[Any, Any, None]: ...


class Room:
    """Keeps the loaded models within the limits of the config."""

    def __init__(
        self,
        config: LoadingConfig,
        backends: Backends,
        all_models: Callable[[], Sequence[ModelEntry]],
        unload: Unload,
        clock: Clock,
        meter: Meter,
    ) -> None:
        self._config = config
        self._backends = backends
        self._all_models = all_models
        self._unload = unload
        self._clock = clock
        self._meter = meter
        self._measured_at = float("-inf")

    def use_config(self, config: LoadingConfig) -> None:
        """Keep to these limits from now on."""
        self._config = config

    async def measure(self) -> None:
        """Measure the models' memory use, at most once per second."""
        if self._clock.time() < self._measured_at + 1:
            return
        self._measured_at = self._clock.time()
        for holder in self._held():
            await self._backends.measure(holder.started)

    async def make(self, model: ModelEntry) -> None:
        """Unload others until `model` fits, least recently used first, none while it is in use.

        `BackendUnavailableError` if that is impossible.
        """
        if self._backends.is_started(model.config, model.root):
            return
        limits = await self._limits()
        if limits == Limits(None, None, None):
            return
        expected, measured = await asyncio.to_thread(
            self._backends.expected, model.config, model.root
        )
        how = "as measured" if measured else "estimated from its files"
        taken = f"{gib(expected.ram)} RAM and {gib(expected.gpu)} GPU memory, {how}"
        logger.info("model %s will take %s", model.name, taken)
        await self.measure()
        while crossed := self._crossed(limits, expected):
            await self._evict(f"no room for {model.name!r} ({taken}): {crossed}")

    async def keep_to_limits(self, loaded: ModelEntry) -> None:
        """Unload idle models if the one just loaded takes more than was expected."""
        limits = await self._limits()
        while crossed := limits.crossed(len(held := self._held()), taken_by(held)):
            others = [each for each in held if loaded not in each.models and not each.in_use]
            victim = first_to_go(others)
            if victim is None:
                logger.warning("%s; loaded: %s", crossed, _listed(held))
                return
            logger.info("%s; unloading %s", crossed, victim)
            for model in victim.models:
                await self._unload(model, 0, _REASON)

    async def _evict(self, problem: str) -> None:
        held = self._held()
        victim = first_to_go(held)
        if victim is None:
            raise BackendUnavailableError(f"{problem}; loaded: {_listed(held)}")
        logger.info("%s; unloading %s", problem, victim)
        try:
            for model in victim.models:
                await self._unload(model, self._config.timeout, _REASON, abort=False)
        except TimeoutError:
            raise BackendUnavailableError(
                f"{problem}; loaded: {_listed(held)}, which did not become idle in time"
            ) from None

    async def _limits(self) -> Limits:
        return Limits.of(self._config, await asyncio.to_thread(self._meter.total))

    def _crossed(self, limits: Limits, expected: MemoryUse) -> str | None:
        held = self._held()
        return limits.crossed(len(held) + 1, taken_by(held) + expected)

    def _held(self) -> list[Holder]:
        return holders(self._all_models())


def _listed(held: Sequence[Holder]) -> str:
    return ", ".join(map(str, held)) or "none"
