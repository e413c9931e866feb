"""An engine's adapters by client-facing name, and the requests that still use them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import count

from enginebay.contract.errors import InvalidRequestError
from enginebay.contract.types import Lora


class Adapters:
    """The adapters an engine has loaded, and those that new requests may use.

    An engine caches prefixes per adapter, and running requests keep their adapter. So a replacement
    gets a new name in the engine.
    """

    def __init__(self) -> None:
        self._names: dict[str, str] = {}  # in the engine, by the names that clients send
        self._loras: dict[str, tuple[Lora, ...]] = {}  # of those that were loaded later
        self._taken: set[str] = set()
        self._users: Counter[str] = Counter()
        self._retired: set[str] = set()

    def configure(self, names: Iterable[str]) -> None:
        """Record the adapters an engine is built with."""
        self._names = {name: name for name in names}
        self._taken.update(self._names)

    def missing(self, loaded: Iterable[str]) -> dict[str, tuple[Lora, ...]]:
        """The adapters a rebuilt engine lacks, by engine name."""
        wanted = set(self._names.values()).difference(loaded)
        return {name: loras for name, loras in self._loras.items() if name in wanted}

    def surplus(self, loaded: Iterable[str]) -> set[str]:
        """Adapters a rebuilt engine has loaded that were removed since."""
        return set(loaded).difference(self._names.values())

    def new_name(self, name: str) -> str:
        """A new, unused engine name for it."""
        others = (f"{name} ({number})" for number in count(2))
        while name in self._taken:
            name = next(others)
        self._taken.add(name)
        return name

    def add(self, name: str, in_engine: str, loras: Sequence[Lora]) -> str | None:
        """Make it available; returns the engine name of a replaced one that can be freed now."""
        replaced = self.remove(name)
        self._names[name] = in_engine
        self._loras[in_engine] = tuple(loras)
        return replaced

    def remove(self, name: str) -> str | None:
        """Make it unavailable; returns its engine name if it can be freed now."""
        in_engine = self._names.pop(name, None)
        if in_engine is None:
            return None
        self._loras.pop(in_engine, None)
        if not self._users[in_engine]:
            return in_engine
        self._retired.add(in_engine)
        return None

    def forget(self, in_engine: str) -> None:
        """Drop one that a rebuilt engine could not reload."""
        self._names = {name: other for name, other in self._names.items() if other != in_engine}
        self._loras.pop(in_engine, None)

    def enter(self, name: str | None) -> str | None:
        """Mark it used by a request; returns its engine name. `InvalidRequestError` if unknown."""
        if name is None:
            return None
        in_engine = self._names.get(name)
        if in_engine is None:
            raise InvalidRequestError(f"this model has no adapter {name!r}", param="model")
        self._users[in_engine] += 1
        return in_engine

    def leave(self, in_engine: str | None) -> str | None:
        """A request that used it has ended; returns its engine name if it can be freed now."""
        if in_engine is None:
            return None
        self._users[in_engine] -= 1
        if self._users[in_engine] or in_engine not in self._retired:
            return None
        self._retired.remove(in_engine)
        return in_engine
