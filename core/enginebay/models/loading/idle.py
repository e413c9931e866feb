"""Unloads idle models."""

from collections.abc import Callable
from math import isfinite

from enginebay.models.loading.clock import Clock, Timer
from enginebay.models.loading.entry import ModelEntry


class IdleTimers:
    """Calls `unload(model, reason)` when a model has been idle for its `idle_timeout`."""

    def __init__(self, clock: Clock, unload: Callable[[ModelEntry, str], object]) -> None:
        self._clock = clock
        self._unload = unload
        self._timers: dict[ModelEntry, tuple[float, Timer]] = {}

    def watch(self, model: ModelEntry) -> None:
        """Schedule its unloading; call it when the model is loaded and after each use."""
        due, _ = self._timers.get(model, (None, None))
        if due is None or due > self._clock.time() + model.idle_timeout:
            self._call_later(model, model.idle_timeout)

    def forget(self, model: ModelEntry) -> None:
        """Do not unload it any more."""
        if scheduled := self._timers.pop(model, None):
            scheduled[1].cancel()

    def close(self) -> None:
        """Cancel all timers."""
        for model in list(self._timers):
            self.forget(model)

    def _call_later(self, model: ModelEntry, delay: float) -> None:
        self.forget(model)
        if not isfinite(delay):
            return
        due = self._clock.time() + delay
        self._timers[model] = (due, self._clock.call_later(delay, lambda: self._look(model)))

    def _look(self, model: ModelEntry) -> None:
        del self._timers[model]
        if not model.is_loaded or model.use.count or model.state == "draining":
            return  # the end of its next request begins anew
        idle = self._clock.time() - (model.use.last or 0.0)
        if idle < model.idle_timeout:
            self._call_later(model, model.idle_timeout - idle)
            return
        self._unload(model, f"it was idle for {idle:.0f} s")
