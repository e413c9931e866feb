"""Eviction: unloads models so that another one can be loaded."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence, Set
from typing import Any, Protocol

from enginebay.config.loading import LoadingConfig
from enginebay.contract.errors import BackendUnavailableError
from enginebay.contract.estimates import MemoryUse
from enginebay.models.loading.clock import Clock
from enginebay.models.loading.entry import ModelEntry
from enginebay.models.loading.memory import Meter, gib
from enginebay.models.loading.memory_limits import Holder, Limits, first_to_go, holders, taken_by
from enginebay.models.loading.running_backends import Backends

logger = logging.getLogger(__name__)

Users = Set[str | None] | None
"""The users for whom a model is loaded; None: the config or an admin wants it."""

_REASON = "it was unloaded to make room for another model"


class Unload(Protocol):
    """Unload a model once it is unused; `Loader` decides what happens while it is in use."""

    def __call__(
        self, model: ModelEntry, limit: float, reason: str, *, abort: bool = True
    ) -> Coroutine[Any, Any, None]: ...


class Room:
    """Keeps the loaded models within the limits of the config, and within free memory."""

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

    async def make(self, model: ModelEntry, *, commanded: bool) -> None:
        """Unload others until `model` fits, least recently used first, none while it is in use.

        A model of the config that other users use now only makes room for a model of the config, or
        for a load that was `commanded`. `BackendUnavailableError` if that is impossible.
        """
        for_all = commanded or model.source == "config"
        users = None if for_all else model.use.users.keys()
        config = model.config
        if self._backends.run_elsewhere(config) or self._backends.is_started(config, model.root):
            return
        limits = await self._limits()
        if limits != Limits(None, None, None):
            await self._keep_within(limits, model, users)
        if self._config.check_memory:
            await self._free_memory(model, users)

    async def _keep_within(self, limits: Limits, model: ModelEntry, users: Users) -> None:
        expected, measured = await asyncio.to_thread(
            self._backends.expected, model.config, model.root
        )
        how = "as measured" if measured else "estimated from its files"
        taken = f"{gib(expected.ram)} RAM and {gib(expected.gpu)} GPU memory, {how}"
        logger.info("model %s: expected to use %s", model.name, taken)
        await self.measure()
        while crossed := self._crossed(limits, expected):
            problem = f"no room for {model.name!r} ({taken}): {crossed}"
            await self._evict(problem, self._held(), users)

    async def _free_memory(self, model: ModelEntry, users: Users) -> None:
        """Unload idle models while there is too little free memory for `model` to run well.

        Where not even the least that it needs is free, those in use, too, once they are idle; none
        if all of them together are not enough.
        """
        estimates = self._backends.estimates
        while fit := await asyncio.to_thread(self._backends.fit, model.config):
            if (lacks := fit.lacks) is None:
                return
            unpinned = [each for each in self._held() if not each.pinned]
            holding = [each for each in unpinned if getattr(each.started.memory, lacks)]
            victim = first_to_go([each for each in holding if not each.in_use])
            enough = not fit.with_free(taken_by(holding)).impossible
            if fit.impossible and not (victim and enough):
                advice = await asyncio.to_thread(estimates.advice, model.config, fit)
                problem = f"model {model.name!r} does not fit: {fit.impossible}"
                remedies = f"; what would help: {'; '.join(advice)}" if advice else ""
                await self._evict(problem + remedies, holding if enough else (), users)
            elif victim:
                logger.info("model %s: too little memory is free; unloading %s", model.name, victim)
                for other in victim.models:
                    await self._unload(other, 0, _REASON)
            else:
                return

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

    async def _evict(self, problem: str, among: Sequence[Holder], users: Users) -> None:
        held = self._held()
        victim = first_to_go([each for each in among if not each.is_kept_from(users)])
        if victim is None:
            busy = "; try again when one of them is idle" if first_to_go(among) else ""
            raise BackendUnavailableError(f"{problem}; loaded: {_listed(held)}{busy}")
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
        """Those that take memory of this machine."""
        running = holders(self._all_models())
        return [holder for holder in running if not holder.started.backend.elsewhere]


def _listed(held: Sequence[Holder]) -> str:
    return ", ".join(map(str, held)) or "none"
