"""The state of a model: from unloaded to ready and back, and why it is not ready."""

import asyncio
import time
from typing import Literal

from enginebay.config.schema import ModelConfig
from enginebay.contract.errors import BackendUnavailableError, ModelFailedError, encodable
from enginebay.models.loading.progress import LoadProgress
from enginebay.models.loading.running_backends import Backends, StartedBackend
from enginebay.models.loading.stay import Stay
from enginebay.models.loading.use import Use

State = Literal["unloaded", "loading", "ready", "draining", "failed"]
"""`draining`: to be unloaded as soon as its requests have ended."""

ShownState = State | Literal["stuck"]
"""`stuck`: it was ready, but no longer responds."""


class ModelState:
    """Whether a model is in memory, loading or failed; the loader moves it from state to state.

    `config` is what it is loaded with, `configured` what it is reloaded with; `wrong`: why that
    cannot be used. `there` is set while it is in memory, `settled` when draining is over.
    `on_request`: a request may load it, after `failures` in a row not before `retry_at` (by the
    loader's clock), unless it only `lacked_library` that is there now. `stuck`: why it does not
    respond, set by `Watch`. `stay`: the idle times that requests asked for.
    """

    def __init__(self, config: ModelConfig) -> None:
        self.name = config.name
        self.config = config
        self.configured = config
        self.wrong: str | None = None
        self.loaded_at: int | None = None
        self.use = Use()
        self.there = asyncio.Event()
        self.settled = asyncio.Event()
        self.on_request = config.load != "command"
        self.failures = 0
        self.retry_at = 0.0
        self.lacked_library = False
        self.stay = Stay()
        self.progress = LoadProgress()
        self.stuck: str | None = None
        self._state: State = "unloaded"
        self._error: str | None = None
        self._started: StartedBackend | None = None

    @property
    def unavailable(self) -> str | None:
        """Why a model that was ready cannot answer for now; None if it can."""
        return self._started.backend.unavailable if self._started else None

    @property
    def state(self) -> State:
        """`ready` if it can answer; if it temporarily cannot, `loading` again."""
        if self.wrong and self._state == "unloaded":
            return "failed"
        return "loading" if self.unavailable and self._state == "ready" else self._state

    @property
    def shown(self) -> tuple[ShownState, str | None]:
        """The state shown to clients, and the error, if any."""
        if self.stuck and self.state == "ready":
            return "stuck", self.stuck
        return self.state, self.error

    @property
    def impaired(self) -> bool:
        """Whether it should answer but does not; a model that is only loading does not count."""
        return self.shown[0] in ("failed", "stuck") or self.unavailable is not None

    @property
    def is_loaded(self) -> bool:
        """Whether it is in memory."""
        return self._started is not None

    @property
    def error(self) -> str | None:
        """The error of a model that failed or temporarily cannot answer."""
        error = self.unavailable or self._error
        if self.wrong and not self.is_loaded:
            error = self.wrong
        return error and encodable(error)

    @property
    def stage(self) -> str:
        """What its load is at; of one that is loaded but cannot answer, why."""
        return encodable(self.unavailable or self.progress.stage)

    @property
    def has_lost_engines(self) -> bool:
        """Whether it is loaded, but none of its engines, which are on other machines, answers."""
        return bool(self._started and self._started.backend.elsewhere and self.unavailable)

    @property
    def started(self) -> StartedBackend | None:
        """The backend that runs it, possibly shared."""
        return self._started

    @property
    def is_active(self) -> bool:
        """Whether it is loaded, or about to be, or being unloaded."""
        return self.is_loaded or self._state in ("loading", "draining")

    def require_ready(self, asked: str | None = None) -> None:
        """Raise `BackendUnavailableError` unless the model can answer.

        `asked`: the name by which a request asks for it, which the error then has.
        """
        name = asked or self.name
        if self.wrong and not self.is_loaded:
            raise ModelFailedError(f"the settings of {name!r} cannot be used: {self.error}")
        if self.unavailable:
            raise BackendUnavailableError(
                f"model {name!r} cannot answer now, try again soon; {self.unavailable}"
            )
        match self._state:
            case "loading":
                raise BackendUnavailableError(
                    f"model {name!r} is still loading ({self.progress}); try again soon"
                )
            case "ready" | "draining" if not self.is_loaded:  # it is just being closed
                raise BackendUnavailableError(f"model {name!r} was unloaded")
            case "failed":
                raise ModelFailedError(f"model {name!r} is not available: {self.error}")
            case "unloaded" if self._error:
                raise BackendUnavailableError(f"model {name!r} is not available: {self.error}")
            case "unloaded":
                raise BackendUnavailableError(f"model {name!r} is not loaded")

    def configure(self, config: ModelConfig, wrong: str | None = None) -> None:
        """Load it with this config the next time; or, if that is `wrong`, not at all."""
        if (config, wrong) == (self.configured, self.wrong):
            return
        self.configured, self.wrong = config, wrong
        if not self.is_loaded and self._state in ("unloaded", "failed"):
            self.config, self.on_request = config, config.load != "command"
            self._state, self._error, self.failures, self.retry_at = "unloaded", None, 0, 0.0

    def begin_loading(self) -> None:
        """Mark it as waiting to be loaded."""
        self._state, self._error = "loading", None
        self.progress.report("waiting", 0.0)

    def _become_ready(self, started: StartedBackend) -> None:
        self._started = started
        self._state, self._error, self.failures = "ready", None, 0
        self.loaded_at = int(time.time())
        self.there.set()

    def fail(self, error: str) -> None:
        """Mark it as failed."""
        self._state, self._error = "failed", error
        self.failures += 1

    def drain(self) -> None:
        """Accept no more requests."""
        self._state = "draining"
        self.settled.clear()

    def resume(self) -> None:
        """Accept requests again."""
        self._state = "ready"
        self.settled.set()

    async def close(self, backends: Backends, reason: str, *, stopping: bool = False) -> None:
        """Unload the model. `reason` is reported to requests for it.

        `stopping`: the server stops, and an engine that others use may go on.
        """
        started, self._started = self._started, None
        self.there.clear()
        try:
            if started:
                if self.use.count:  # another entry of this name may share the gate
                    error = BackendUnavailableError(f"model {self.name!r} was unloaded")
                    started.gate.refuse(self.name, error)
                await backends.stop(started, stopping=stopping)
        finally:
            self.stay.end()
            self._state, self._error, self.loaded_at = "unloaded", reason, None
            self.config = self.configured
            self.settled.set()
