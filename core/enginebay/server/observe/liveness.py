"""Liveness check of models, by their progress."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from enginebay.chat.answer.counts import Counts, ModelCounts
from enginebay.contract.errors import ServingError
from enginebay.models.loading.entry import ModelEntry
from enginebay.models.registry import Models

logger = logging.getLogger(__name__)

_FRESH = 1.0
"""Seconds that a check stays valid, so that clients cannot trigger constant pings."""

_PATIENCE = 1.0
"""Seconds that a check waits for models to answer."""

_INTERVAL = 5.0
"""Seconds between two background checks."""


class Watch(Collector):
    """Detects stuck models.

    A model shows that it is alive by a delta, by a step of its engine (`EngineStats.steps`), or by
    the answer to `Backend.ping`. It is stuck when a ping has waited for longer than `stall_timeout`
    seconds, or when somebody waits for it and there has been neither step nor delta for so long.
    """

    def __init__(
        self,
        models: Models,
        counts: Counts,
        stall_timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._models = models
        self._counts = counts
        self._stall_timeout = stall_timeout
        self._clock = clock
        self._pulses: dict[str, _Pulse] = {}
        self._checked_at = -_FRESH
        self._impaired_since: dict[str, datetime] = {}

    async def run(self) -> None:
        """Check every few seconds, until cancelled."""
        while True:
            await asyncio.sleep(min(_INTERVAL, self._stall_timeout / 4))
            await self.check()

    async def check(self) -> None:
        """Check every model that should make progress; takes a second at most."""
        now = self._clock()
        if now - self._checked_at < _FRESH:
            return
        self._checked_at = now
        alive = {m.config.name: m for m in self._models.all() if m.state == "ready"}
        for name, pulse in list(self._pulses.items()):
            if alive.get(name) is not pulse.model:
                self._pulses.pop(name).forget()
        for name, model in alive.items():
            counts = self._counts.of(name)
            pulse = self._pulses.setdefault(name, _Pulse(model, counts, self._clock))
            pulse.look()
        if pings := [pulse.ping for pulse in self._pulses.values() if pulse.ping]:
            await asyncio.wait(pings, timeout=_PATIENCE)
        for pulse in self._pulses.values():
            pulse.judge(self._stall_timeout)
        for model in self._models.all():
            self.impaired_since(model)

    def impaired_since(self, model: ModelEntry) -> datetime | None:
        """When it was noticed that a model does not answer though it should; else None."""
        if not model.impaired:
            self._impaired_since.pop(model.config.name, None)
            return None
        return self._impaired_since.setdefault(model.config.name, datetime.now(UTC))

    def close(self) -> None:
        """Ask no more."""
        for pulse in self._pulses.values():
            pulse.forget()

    def describe(self) -> Iterator[Metric]:
        """Nothing: see `Metrics`."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """A gauge of models that are stuck."""
        family = GaugeMetricFamily(
            "enginebay:model_stuck",
            "1 for a model that is stuck: it makes no progress.",
            labels=("model_name", "backend"),
        )
        for model in self._models.all():
            labels = (model.config.name, model.config.backend)
            family.add_metric(labels, model.shown[0] == "stuck")
        yield family


class _Pulse:
    """The liveness of one model; `ping` is a ping that has not been answered yet."""

    def __init__(self, model: ModelEntry, counts: ModelCounts, clock: Callable[[], float]) -> None:
        self.model = model
        self._counts = counts
        self._clock = clock
        self._steps = 0
        self._stepped_at = float("-inf")
        self._asked_at = clock()
        self.ping: asyncio.Task[None] | None = None

    def look(self) -> None:
        """Note progress, and send a ping if there was none."""
        stats = self.model.stats
        if stats and stats.steps != self._steps:
            self._steps, self._stepped_at = stats.steps, self._clock()
        fresh = self._clock() - self._progress_at < _FRESH
        if self.ping is None and not fresh:
            self._asked_at = self._clock()
            self.ping = asyncio.create_task(self._ask())

    def judge(self, stall_timeout: float) -> None:
        """Decide whether the model is stuck."""
        silent_since = []
        if self.ping:
            silent_since.append(max(self._asked_at, self._progress_at))
        if self._counts.in_flight:
            silent_since.append(self._progress_at)
        silent = self._clock() - min(silent_since, default=self._clock())
        if silent <= stall_timeout:
            if self.model.stuck:
                logger.warning("model %s is responding again", self.model.config.name)
            self.model.stuck = None
            return
        waiting = self._counts.in_flight
        reason = f"no progress for {silent:.0f} s while {waiting} requests wait for it"
        if not self.model.stuck:
            logger.error("model %s is stuck: %s", self.model.config.name, reason)
        self.model.stuck = reason

    def forget(self) -> None:
        """Cancel the ping; a model that is loaded again starts afresh."""
        self.model.stuck = None
        if self.ping:
            self.ping.cancel()

    @property
    def _progress_at(self) -> float:
        return max(self._stepped_at, self._counts.progress_at)

    async def _ask(self) -> None:
        try:
            with suppress(ServingError):  # there is no engine now, which the model's state says
                await self.model.served().backend.ping()
        except Exception:
            logger.exception("the ping of model %s failed", self.model.config.name)
        finally:
            self.ping = None
