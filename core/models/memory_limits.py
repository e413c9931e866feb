"""Who holds how much memory, whether more fits beside that, and who goes first."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from core.config.loading import LoadingConfig, bytes_of
from core.models.entry import ModelEntry
from core.models.memory import MemoryUse
from core.models.running_backends import StartedBackend


@dataclass(frozen=True, slots=True)
class Limits:
    """How many backends may run at once, and what they may take together; None: any."""

    models: int | None
    ram: int | None
    gpu: int | None

    @classmethod
    def of(cls, config: LoadingConfig, total: MemoryUse) -> "Limits":
        """What the config says, on a machine with so much memory."""
        ram, gpu = bytes_of(config.max_ram, total.ram), bytes_of(config.max_gpu, total.gpu)
        return cls(config.max_loaded_models, ram, gpu)

    def crossed(self, models: int, memory: MemoryUse) -> str | None:
        """Which limit so many models with so much memory would cross."""
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
    """A backend that runs, and the models that answer with it."""

    started: StartedBackend
    models: tuple[ModelEntry, ...]

    @property
    def in_use(self) -> bool:
        """Whether a request holds one of the models."""
        return any(model.use.count for model in self.models)

    @property
    def last_used(self) -> float:
        """When a request last let go of one of the models."""
        return max(model.use.last or 0.0 for model in self.models)

    @property
    def pinned(self) -> bool:
        """Whether one of them must stay."""
        return any(model.config.pinned for model in self.models)

    def __str__(self) -> str:
        names = ", ".join(repr(model.name) for model in self.models)
        state = "pinned" if self.pinned else "in use" if self.in_use else "idle"
        memory = self.started.memory
        gpu = f", {gib(memory.gpu)} GPU memory" if memory.gpu else ""
        return f"{names} ({state}, {gib(memory.ram)} RAM{gpu})"


def holders(models: Iterable[ModelEntry]) -> list[Holder]:
    """Who holds memory, each backend once."""
    by_backend: dict[StartedBackend, list[ModelEntry]] = {}
    for model in models:
        if model.started:
            by_backend.setdefault(model.started, []).append(model)
    return [Holder(started, tuple(sharing)) for started, sharing in by_backend.items()]


def first_to_go(held: Sequence[Holder]) -> Holder | None:
    """Of those that are not pinned: an idle one before any in use, then the longest unused."""
    unpinned = [holder for holder in held if not holder.pinned]
    return min(unpinned, key=lambda holder: (holder.in_use, holder.last_used), default=None)


def taken_by(held: Iterable[Holder]) -> MemoryUse:
    """What they take together."""
    return sum((holder.started.memory for holder in held), MemoryUse())


def gib(size: int) -> str:
    """`1.5 GiB`."""
    return f"{size / 2**30:.1f} GiB"
