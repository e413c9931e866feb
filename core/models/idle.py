"""Unloads idle models."""

from collections.abc import Callable

from core.models.clock import Clock, Timer
from core.models.entry import ModelEntry


class IdleTimers:
    """Calls `unload(model, reason)` when a model has been idle for its `idle_timeout`."""

    def __init__(self, clock: Clock, unload: Callable[[ModelEntry, str], object]) -> None:
        self._clock = clock
        self._unload = unload
        self._timers: dict[ModelEntry, Timer] = {}

    def watch(self, model: ModelEntry) -> None:
        """Schedule its unloading; call it when the model is loaded and after each use."""
        if model.config.idle_timeout and not model.config.pinned and model not in self._timers:
            self._call_later(model, model.config.idle_timeout)

    def close(self) -> None:
        """Cancel all timers."""
        for timer in self._timers.values():
            timer.cancel()

    def _call_later(self, model: ModelEntry, delay: float) -> None:
        self._timers[model] = self._clock.call_later(delay, lambda: self._look(model))

    def _look(self, model: ModelEntry) -> None:
        del self._timers[model]
        if not model.is_loaded or model.use.count or model.state == "draining":
            return  # the end of its next request begins anew
        idle = self._clock.time() - (model.use.last or 0.0)
        if idle < model.config.idle_timeout:
            self._call_later(model, model.config.idle_timeout - idle)
            return
        self._unload(model, f"it was idle for {idle:.0f} s")
