"""Loading and unloading: one model of this machine at a time, with eviction, waiting requests."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import nullcontext
from math import ceil
from typing import Any

from enginebay.config.loading import LoadingConfig
from enginebay.config.schema import ModelConfig
from enginebay.contract.errors import BackendUnavailableError, ModelFailedError, QueueFullError
from enginebay.engine.backoff import Backoff
from enginebay.models.loading.clock import Clock, pause
from enginebay.models.loading.entry import ModelEntry
from enginebay.models.loading.eviction import Room
from enginebay.models.loading.idle import IdleTimers
from enginebay.models.loading.memory import Meter
from enginebay.models.loading.running_backends import Backends
from enginebay.models.loading.start import Starter

logger = logging.getLogger(__name__)

_LONGEST_BACKOFF = 600.0


class Loader:
    """Moves models between their states. Everything happens on the event loop.

    `all_models` are those that may be evicted. Loads continue even if the caller leaves.
    """

    def __init__(
        self,
        config: LoadingConfig,
        backends: Backends,
        starter: Starter,
        all_models: Callable[[], Sequence[ModelEntry]],
        clock: Clock,
        meter: Meter,
    ) -> None:
        self.room = Room(config, backends, all_models, self._unload, clock, meter)
        self._config = config
        self._backends = backends
        self._starter = starter
        self._all_models = all_models
        self._clock = clock
        self._idle = IdleTimers(clock, lambda model, why: self._go(self._unload_idle(model, why)))
        self._backoff = Backoff(first=config.retry_after, longest=_LONGEST_BACKOFF)
        self._turn = asyncio.Lock()
        self._loads: dict[ModelEntry, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def use_config(self, config: LoadingConfig) -> None:
        """Keep to these limits from now on."""
        self._config = config
        self._backoff = Backoff(first=config.retry_after, longest=_LONGEST_BACKOFF)
        self.room.use_config(config)
        for model in self._all_models():
            if model.is_loaded:
                self._idle.watch(model)

    async def take(self, model: ModelEntry, user: str | None, asked: str | None = None) -> None:
        """Hold `model` for a user once it is ready, loading it if needed.

        `asked`: its name in the request. Release it with `give_back`. Raises
        `BackendUnavailableError` if it must not or cannot be loaded, or not in time,
        `QueueFullError` if too many wait already.
        """
        name = asked or model.name
        if model.is_loaded and model.state != "draining":
            model.require_ready(asked)
            model.use.begin(user)
            return
        if model.use.waiting >= max(1, model.config.max_queue):
            raise QueueFullError(
                f"model {name!r} is still loading ({model.progress}), and "
                f"no more than {model.use.waiting} requests may wait for it"
            )
        model.use.waiting += 1
        try:
            async with asyncio.timeout(self._config.timeout):
                await self._wait_for(model, user, asked)
        except TimeoutError:
            model.require_ready(asked)
            raise BackendUnavailableError(
                f"model {name!r} is not ready after {self._config.timeout:g} s "
                f"({model.progress}); it goes on loading"
            ) from None
        finally:
            model.use.waiting -= 1

    async def _wait_for(self, model: ModelEntry, user: str | None, asked: str | None) -> None:
        while model.state == "draining":
            self._require_loadable(model, asked)
            await model.settled.wait()
        model.use.begin(user)
        try:
            if not model.is_loaded:
                self._require_loadable(model, asked)
                await self._until_loaded(model)
            model.require_ready(asked)
        except BaseException:
            self.give_back(model, user)
            raise

    async def _until_loaded(self, model: ModelEntry) -> None:
        """Return when the load has ended, or as soon as the model is in memory.

        Another load may already be queued after the one that loads it, until others release it.
        """
        there = asyncio.ensure_future(model.there.wait())
        try:
            await asyncio.wait(
                {self.load(model, commanded=False), there}, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            there.cancel()

    def give_back(self, model: ModelEntry, user: str | None) -> None:
        """A request of a user has ended."""
        model.use.end(user, self._clock.time())
        self._idle.watch(model)

    def load(
        self,
        model: ModelEntry,
        *,
        config: ModelConfig | None = None,
        replaced: ModelEntry | None = None,
        drain_timeout: float | None = None,
        commanded: bool = True,
    ) -> asyncio.Task[None]:
        """Start loading it; the task ends when it is ready or has an `error`.

        If `config` differs from the loaded one, it is reloaded. `replaced` is unloaded first.
        Running requests get `drain_timeout` seconds, or the config's. `commanded`: whether an admin
        or the config wants that, rather than requests for the model.
        """
        before = self._loads.get(model)
        if before and config in (None, model.config) and replaced is None:
            return before
        model.on_request = True
        if replaced:
            replaced.on_request = replaced.config.load == "request"
        if not model.is_loaded:
            model.begin_loading()
        task = self._loads[model] = self._go(
            self._load(model, before, config, replaced, self._limit(drain_timeout), commanded)
        )
        task.add_done_callback(lambda done: self._forget(model, done))
        return task

    def retire(self, old: ModelEntry, new: ModelEntry | None = None) -> asyncio.Task[None]:
        """Unload `old` once its requests have ended, however long that takes; new ones must not
        find it any more. `new` is loaded in its place, or when it is asked for, after that.

        An `old` one whose model is elsewhere takes no memory here, and answers until `new` can.
        """
        was_loaded = old.state in ("ready", "loading")
        old.retired, old.on_request = True, True
        if new and was_loaded and old.started and old.started.backend.elsewhere:
            new.stand_in = old
            return self._go(self._succeed(old, new))
        task = self._go(self._retire(old))
        if new:
            new.after = task
            if was_loaded:
                self.load(new)
        return task

    async def _succeed(self, old: ModelEntry, new: ModelEntry) -> None:
        """Unload `old` when `new` is ready, however often that fails before."""

        def wanted() -> bool:
            return new.stand_in is old and not (new.is_loaded or new.retired)

        while wanted():
            await asyncio.wait({self.load(new)})
            while wanted():
                await pause(self._clock, 1.0)
                if new.retry_at <= self._clock.time():  # which other settings make zero
                    break
        new.stand_in = None
        await self._retire(old)

    async def _retire(self, old: ModelEntry) -> None:
        if old.state == "draining":
            await old.settled.wait()
        await old.use.wait_for_nobody()
        await self._stop(old, 0, "it is no longer there, or needs another engine")
        self._idle.forget(old)

    async def unload(self, model: ModelEntry, *, drain_timeout: float | None = None) -> None:
        """Unload it on command, or stop loading it; continues even if the caller leaves."""
        model.on_request = model.configured.load == "request"
        reason = "it was unloaded; load it again, or name another model"
        both = [model, model.stand_in] if model.stand_in else [model]
        model.stand_in = None
        await asyncio.wait({self._go(self._stop(each, drain_timeout, reason)) for each in both})

    async def close(self) -> None:
        """Unload everything immediately and for good; may be called again."""
        self._closed = True
        self._idle.close()
        tasks = [task for task in self._tasks if not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for model in self._all_models():
            model.on_request = False
            await model.close(self._backends, "the model was unloaded", stopping=True)

    def _require_loadable(self, model: ModelEntry, asked: str | None) -> None:
        """Raise unless a request may load the model."""
        name = asked or model.name
        left = model.retry_at - self._clock.time()
        if model.lacked_library and not self._starter.lacks_library(model):
            left = 0
        if model.state == "failed" and left > 0:
            raise ModelFailedError(
                f"model {name!r} is not available: {model.error}", retry_after=ceil(left)
            )
        if self._closed or model.wrong:
            model.require_ready(asked)
        if not model.on_request:
            reason = f": {model.error}" if model.error else "; it is loaded on command only"
            if model.state == "draining":
                reason = "; it is being unloaded"
            raise BackendUnavailableError(f"model {name!r} is not loaded{reason}")

    async def _load(
        self,
        model: ModelEntry,
        before: asyncio.Task[None] | None,
        config: ModelConfig | None,
        replaced: ModelEntry | None,
        limit: float,
        commanded: bool,
    ) -> None:
        try:
            for earlier in filter(None, (before, model.after)):
                await asyncio.wait({earlier})
            if not await self._starter.fetch(model, config or model.config):
                return self._failed(model, replaced)
            # This machine loads one after the other. Others load as many as they can.
            elsewhere = self._backends.run_elsewhere(config or model.config)
            async with nullcontext() if elsewhere else self._turn:
                if model.is_loaded and config not in (None, model.config):
                    await self._unload(model, limit, "it is being reloaded with other settings")
                if not model.is_loaded:
                    model.begin_loading()
                    model.config = config or model.config
                if replaced and not replaced.config.pinned:
                    why = f"it was unloaded when {model.name!r} was loaded"
                    await self._unload(replaced, limit, why)
                if model.has_lost_engines:
                    await self._starter.start_again(model)
                if not model.is_loaded:
                    await self.room.make(model, commanded=commanded)
                    await self._starter.start(model)
                    model.use.last = self._clock.time()
                    await self.room.keep_to_limits(model)
        except BackendUnavailableError as error:
            logger.error("model %s: %s", model.name, error.message)
            await model.close(self._backends, error.message)
        except asyncio.CancelledError:
            if not model.is_loaded:  # one that is has requests, perhaps, which get their time
                await model.close(self._backends, "its loading was cancelled")
            raise
        if model.is_loaded:
            model.stay.commanded |= commanded
            self._idle.watch(model)
        else:
            self._failed(model, replaced)

    def _failed(self, model: ModelEntry, replaced: ModelEntry | None) -> None:
        """Nothing was loaded in the place of `replaced`."""
        model.retry_at = self._clock.time() + self._backoff.delay(max(1, model.failures))
        if replaced:
            replaced.on_request = True

    def _forget(self, model: ModelEntry, done: asyncio.Task[None]) -> None:
        if self._loads.get(model) is done:
            del self._loads[model]

    async def _stop(self, model: ModelEntry, drain_timeout: float | None, reason: str) -> None:
        if loading := self._loads.get(model):
            loading.cancel()
            await asyncio.wait({loading})
        await self._unload(model, self._limit(drain_timeout), reason)

    def _limit(self, drain_timeout: float | None) -> float:
        return self._config.drain_timeout if drain_timeout is None else drain_timeout

    async def _unload(
        self, model: ModelEntry, limit: float, reason: str, *, abort: bool = True
    ) -> None:
        """Unload it once it is unused. After `limit` seconds running requests are aborted.

        If not `abort`, the model stays loaded and a `TimeoutError` is raised instead.
        """
        if model.state == "draining":
            await model.settled.wait()
        if not model.is_loaded:
            if model.state == "failed":
                await model.close(self._backends, reason)
            return
        model.drain()
        try:
            async with asyncio.timeout(limit):
                await model.use.wait_for_nobody()
        except TimeoutError:
            if not abort:
                model.resume()
                raise
            logger.info("model %s: aborted requests: %d", model.name, model.use.count)
        except BaseException:
            model.resume()
            raise
        await model.close(self._backends, reason)
        logger.info("model %s: %s", model.name, reason)

    async def _unload_idle(self, model: ModelEntry, reason: str) -> None:
        if not model.use.count:
            await self._unload(model, 0, reason)

    def _go(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
