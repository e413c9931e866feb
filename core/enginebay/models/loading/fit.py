"""Whether a model fits into the memory that is free, and which settings would make it fit."""

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from enginebay.config.schema import ModelConfig
from enginebay.contract.backend_settings import BackendSettings
from enginebay.contract.errors import ServingError
from enginebay.contract.estimates import FreeMemory, MemoryEstimate, MemoryPart, MemoryUse
from enginebay.models.files.model_paths import ModelPaths
from enginebay.models.loading.backend_settings import backend_settings
from enginebay.models.loading.memory import Meter, gib, size_of_files
from enginebay.plugins import Plugins

logger = logging.getLogger(__name__)

_ADVISED = 3  # settings
_TOLERANCE = 1.1  # how much too high an estimate may be

Kind = Literal["ram", "gpu"]
_Needs = Callable[[MemoryEstimate], MemoryUse]


@dataclass(frozen=True, slots=True)
class Fit:
    """An estimate against what is free. `sure`: it is the backend's, not the size of files."""

    estimate: MemoryEstimate
    free: FreeMemory
    sure: bool

    def with_free(self, more: MemoryUse) -> "Fit":
        """The same estimate with more free memory."""
        return replace(self, free=self.free + more)

    @property
    def fits(self) -> bool:
        """Whether all that it will take is free now."""
        return not any(_lacking(self.estimate.total, self.free).values())

    @property
    def lacks(self) -> Kind | None:
        """What would have to be freed for it to run as it should; None if it can."""
        for kind, size in _lacking(self.estimate.total, self.free).items():
            if size:
                return kind
        if not self.estimate.short:
            return None
        return "gpu" if self.estimate.total.gpu and self.free.gpu is not None else "ram"

    @property
    def impossible(self) -> str | None:
        """Why it cannot run, with numbers; None unless not even the least that it needs is there.

        Free swap counts, pages of mapped files do not, and a tenth more than is free is let pass.
        """
        if not self.sure:
            return None
        needed, free = _unmapped(self.estimate), _with_swap(self.free)
        roomy = MemoryUse(int(needed.ram / _TOLERANCE), int(needed.gpu / _TOLERANCE))
        for kind, lacking in _lacking(roomy, free).items():
            if lacking:
                name = "RAM" if kind == "ram" else "GPU memory"
                there: int = getattr(free, kind)
                wanted: int = getattr(needed, kind)
                return (
                    f"it needs at least {gib(wanted)} of {name} and {gib(there)} are free, "
                    f"{gib(wanted - there)} too little"
                )
        return None


class Estimates:
    """What models of a config will take, as their backends say. Every method blocks briefly."""

    def __init__(self, plugins: Plugins, paths: ModelPaths, meter: Meter) -> None:
        self._plugins = plugins
        self._paths = paths
        self._meter = meter

    def fit(self, config: ModelConfig, held: MemoryUse | None = None) -> Fit:
        """What it will take, given what is free now, and what it holds itself if it is loaded.

        `BackendUnavailableError` for files that cannot be read, and the `ServingError` of a backend
        that makes no estimate of this model.
        """
        free = self._meter.free() + (held or MemoryUse())
        entry = self._plugins.backends.get(config.backend)
        if entry and entry.estimate:
            try:
                return Fit(entry.estimate(self._settings(config), free), free, sure=True)
            except ServingError:
                raise
            except Exception:  # a plugin's own code, or a file that nobody thought of
                logger.exception(
                    "the backend %s made no estimate of %s", config.backend, config.name
                )
        size = size_of_files(self._paths.local(config.path, config.backend))
        use = MemoryUse(gpu=size) if self._meter.total().gpu else MemoryUse(ram=size)
        estimate = MemoryEstimate(parts=(MemoryPart("weights", use.ram, use.gpu),), least=use)
        return Fit(estimate, free, sure=False)

    def advice(self, config: ModelConfig, fit: Fit) -> list[str]:
        """The settings with which it would fit, or would come closest, with what each saves.

        None for a model that fits, or whose backend makes no estimates.
        """
        if fit.impossible:
            return self._advice(config, fit, _unmapped, _with_swap(fit.free))
        return self._advice(config, fit, _total, fit.free)

    def _advice(self, config: ModelConfig, fit: Fit, needs: _Needs, free: FreeMemory) -> list[str]:
        lacking = _lacking(needs(fit.estimate), free)
        if not fit.sure or not any(lacking.values()):
            return []
        best: dict[tuple[str, ...], tuple[bool, int, Mapping[str, Any]]] = {}
        for change in fit.estimate.smaller:
            names = tuple(sorted(change))
            if names in best and best[names][0]:
                continue  # a milder one is enough
            tried = self._tried(config, fit.free, change)
            if tried is None:
                continue
            left = _lacking(needs(tried), free)
            before, after = needs(fit.estimate), needs(tried)
            saved = sum(
                getattr(before, kind) - getattr(after, kind) for kind in lacking if lacking[kind]
            )
            if saved > 0:
                best[names] = (not any(left.values()), saved, change)
        ranked = sorted(best.values(), key=lambda each: (-each[0], -each[1]))[:_ADVISED]
        advice = [_told(change, saved, enough) for enough, saved, change in ranked]
        if len(ranked) > 1 and not ranked[0][0]:
            advice.extend(self._together(config, fit, needs, free, [each[2] for each in ranked]))
        if not advice or not any(enough for enough, *_ in ranked):
            advice.append(_smaller_files(fit.estimate, lacking))
        return advice

    def _together(
        self,
        config: ModelConfig,
        fit: Fit,
        needs: _Needs,
        free: FreeMemory,
        changes: list[Mapping[str, Any]],
    ) -> Iterator[str]:
        """Whether all of them are enough."""
        every = {name: value for change in reversed(changes) for name, value in change.items()}
        tried = self._tried(config, fit.free, every)
        if tried and not any(_lacking(needs(tried), free).values()):
            yield "all of these together make it fit"

    def _tried(
        self, config: ModelConfig, free: FreeMemory, change: Mapping[str, Any]
    ) -> MemoryEstimate | None:
        """The estimate with other options; None if they do not go together."""
        estimate = self._plugins.backends[config.backend].estimate
        assert estimate
        changed = config.model_copy(update={"options": {**config.options, **change}})
        try:
            return estimate(self._settings(changed), free)
        except Exception:  # the estimate without the change was made
            return None

    def _settings(self, config: ModelConfig) -> BackendSettings:
        entry = self._plugins.backends[config.backend]
        return backend_settings(config, entry, self._paths, lambda stage, fraction: None)


def with_context_length(config: ModelConfig, tokens: int | None) -> ModelConfig:
    """The same model with a context of so many tokens; None: as it is."""
    if tokens is None:
        return config
    return config.model_copy(update={"options": {**config.options, "context_length": tokens}})


def _total(estimate: MemoryEstimate) -> MemoryUse:
    return estimate.total


def _unmapped(estimate: MemoryEstimate) -> MemoryUse:
    return MemoryUse(max(0, estimate.least.ram - estimate.mapped), estimate.least.gpu)


def _with_swap(free: FreeMemory) -> FreeMemory:
    return FreeMemory(free.ram + free.swap, free.gpu)


def _lacking(needed: MemoryUse, free: FreeMemory) -> dict[Kind, int]:
    """Bytes that are missing of each kind, what is scarcer first."""
    gpu = 0 if free.gpu is None else max(0, needed.gpu - free.gpu)
    return {"gpu": gpu, "ram": max(0, needed.ram - free.ram)}


def _told(change: Mapping[str, Any], saved: int, enough: bool) -> str:
    settings = ", ".join(f"{name}: {_written(value)}" for name, value in change.items())
    return f"`{settings}` saves {gib(saved)}{' and makes it fit' if enough else ''}"


def _written(value: Any) -> str:
    """As in YAML."""
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def _smaller_files(estimate: MemoryEstimate, lacking: Mapping[Kind, int]) -> str:
    weights = sum(part.ram + part.gpu for part in estimate.parts if part.name == "weights")
    left = weights - max(lacking.values())
    wanted = f", of at most {gib(left)}" if left > 0 else ""
    return (
        f"a smaller model, or a smaller quantization of it{wanted} (its weights are {gib(weights)})"
    )
