"""Memory limits and eviction order."""

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from enginebay.config.loading import LoadingConfig, bytes_of
from enginebay.contract.estimates import MemoryUse
from enginebay.models.loading.entry import ModelEntry
from enginebay.models.loading.memory import gib
from enginebay.models.loading.running_backends import StartedBackend


@dataclass(frozen=True, slots=True)
class Limits:
    """The maximum number of running backends and their total memory; None: unlimited."""

    models: int | None
    ram: int | None
    gpu: int | None

    @classmethod
    def of(cls, config: LoadingConfig, total: MemoryUse) -> "Limits":
        """The config's limits on a machine with this much memory."""
        ram, gpu = bytes_of(config.max_ram, total.ram), bytes_of(config.max_gpu, total.gpu)
        return cls(config.max_loaded_models, ram, gpu)

    def crossed(self, models: int, memory: MemoryUse) -> str | None:
        """The limit that this many models with this much memory would exceed, if any."""
        if self.models is not None and models > self.models:
            return f"max_loaded_models is {self.models}"
        for name, size, limit in (
            ("max_ram", memory.ram, self.ram),
            ("max_gpu", memory.gpu, self.gpu),
        ):
            if limit is not None and size > limit:
                return f"{name} is {gib(limit)}, and {gib(size)} would be used"
        return None


@dataclass(frozen=True, slots=True)
class Holder:
    """A running backend and the models that use it."""

    started: StartedBackend
    models: tuple[ModelEntry, ...]

    @property
    def in_use(self) -> bool:
        """Whether a request holds one of the models."""
        return any(model.use.count for model in self.models)

    def is_kept_from(self, users: Set[str | None] | None) -> bool:
        """Whether a model for these users may not take its place now; None may always."""
        if users is None:
            return False
        configured = (model for model in self.models if model.source == "config")
        return any(not model.use.users.keys() <= users for model in configured)

    @property
    def last_used(self) -> float:
        """When a request last released one of the models."""
        return max(model.use.last or 0.0 for model in self.models)

    @property
    def pinned(self) -> bool:
        """Whether one of the models is pinned."""
        return any(model.config.pinned for model in self.models)

    def __str__(self) -> str:
        names = ", ".join(repr(model.name) for model in self.models)
        state = "pinned" if self.pinned else "in use" if self.in_use else "idle"
        memory = self.started.memory
        gpu = f", {gib(memory.gpu)} GPU memory" if memory.gpu else ""
        return f"{names} ({state}, {gib(memory.ram)} RAM{gpu})"


def holders(models: Iterable[ModelEntry]) -> list[Holder]:
    """The running backends, each once."""
    by_backend: dict[StartedBackend, list[ModelEntry]] = {}
    for model in models:
        if model.started:
            by_backend.setdefault(model.started, []).append(model)
    return [Holder(started, tuple(sharing)) for started, sharing in by_backend.items()]


def first_to_go(held: Sequence[Holder]) -> Holder | None:
    """The eviction victim: not pinned, idle before in use, then least recently used."""
    unpinned = [holder for holder in held if not holder.pinned]
    return min(unpinned, key=lambda holder: (holder.in_use, holder.last_used), default=None)


def taken_by(held: Iterable[Holder]) -> MemoryUse:
    """Their total memory use."""
    return sum((holder.started.memory for holder in held), MemoryUse())
