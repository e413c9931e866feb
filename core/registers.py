"""What plugins contribute, by name."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from core.backend import Backend
from core.types import BackendSettings

T = TypeVar("T")
CreateBackend = Callable[[BackendSettings], Backend]


class Register(Mapping[str, T], Generic[T]):
    """A mapping of names to contributions that is filled by calling it: `register(name, item)`.

    A name taken twice is a `ValueError`: two plugins that answer to one name would make the config
    mean something else from one start to the next.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._items: dict[str, T] = {}

    def __call__(self, name: str, item: T) -> None:
        if name in self._items:
            raise ValueError(f"{self.kind} {name!r} is registered twice")
        self._items[name] = item

    def __getitem__(self, name: str) -> T:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


@dataclass(frozen=True, slots=True)
class BackendEntry:
    """A registered backend: how to create one, the pydantic class that validates its `options`."""

    create: CreateBackend
    options: type[Any] | None = None


class BackendRegister(Register[BackendEntry]):
    """`register(name, create)` or `register(name, create, OptionsModel)`."""

    def __init__(self) -> None:
        super().__init__("backend")

    def __call__(
        self,
        name: str,
        create: CreateBackend | BackendEntry,
        options: type[Any] | None = None,
    ) -> None:
        entry = create if isinstance(create, BackendEntry) else BackendEntry(create, options)
        super().__call__(name, entry)
