"""Registries of what plugins contribute, by name."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import invalidate_caches
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, TypeVar

from enginebay.contract.backend import Backend
from enginebay.contract.backend_settings import BackendSettings
from enginebay.contract.estimates import EstimateMemory

T = TypeVar("T")
CreateBackend = Callable[[BackendSettings], Backend]


class Register(Mapping[str, T], Generic[T]):
    """A mapping of names to contributions that is filled by calling it: `register(name, item)`.

    A duplicate name is a `ValueError`: otherwise the meaning of the config would depend on the load
    order. So is a name in `reserved`. An item that is not an instance of `of` is a `TypeError`.
    """

    def __init__(self, kind: str, of: type[Any] = object, *, reserved: Iterable[str] = ()) -> None:
        self.kind = kind
        self._of = of
        self._reserved = frozenset(reserved)
        self._items: dict[str, T] = {}

    def __call__(self, name: str, item: T) -> None:
        if not isinstance(name, str) or not name.strip():
            raise TypeError(f"a {self.kind} needs a name, not {name!r}")
        if not isinstance(item, self._of):
            raise TypeError(
                f"the {self.kind} {name!r} must be an instance of {self._of.__name__}, not {item!r}"
            )
        if name in self._reserved:
            raise ValueError(f"{name!r} is reserved and cannot name a {self.kind}")
        if name in self._items:
            raise ValueError(f"{self.kind} {name!r} is registered twice")
        self._items[name] = item

    def forget(self, name: str) -> None:
        """Take an item out again."""
        del self._items[name]

    def __getitem__(self, name: str) -> T:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


@dataclass(frozen=True, slots=True)
class BackendEntry:
    """A registered backend: how to create one, the pydantic class that validates its `options`.

    `requires`: the modules that it imports when it is created, so that `enginebay plugins` can say
    which of them are missing. `serves`: whether what is at a path looks like a model for it, so
    that `enginebay chat --path` finds the backend; it looks at names and small files only.
    `estimate`: what memory a model will take, from its headers; without it, the size of its files
    is the estimate. `saves_kv`: it does what `BackendSettings.kv_store` says. `needs_path`: whether
    a model needs a `path`; without one, `BackendSettings.path` is empty. `elsewhere`: its engines
    are those of another backend, on other machines. Its options have the name of that backend as
    `engine`, and its options as `options`. Nothing of the model is looked for on this machine.
    """

    create: CreateBackend
    options: type[Any] | None = None
    requires: tuple[str, ...] = ()
    serves: Callable[[Path], bool] | None = None
    estimate: EstimateMemory | None = None
    saves_kv: bool = False
    needs_path: bool = True
    elsewhere: bool = False

    def missing(self) -> list[str]:
        """Which of the modules in `requires` are not installed, as of now; none is imported."""
        invalidate_caches()
        return [name for name in self.requires if not _is_installed(name)]


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


class BackendRegister(Register[BackendEntry]):
    """`register(name, create)`, or with all that a `BackendEntry` may have:

    `register(name, create, OptionsModel, requires=["library"], serves=looks_like_mine,
    estimate=what_it_takes, saves_kv=True, needs_path=False, elsewhere=True)`.
    """

    def __init__(self) -> None:
        super().__init__("backend", BackendEntry)

    def __call__(
        self,
        name: str,
        create: CreateBackend | BackendEntry,
        options: type[Any] | None = None,
        *,
        requires: Sequence[str] = (),
        serves: Callable[[Path], bool] | None = None,
        estimate: EstimateMemory | None = None,
        saves_kv: bool = False,
        needs_path: bool = True,
        elsewhere: bool = False,
    ) -> None:
        if isinstance(create, BackendEntry):
            super().__call__(name, create)
            return
        if not callable(create):
            raise TypeError(f"the backend {name!r} must be created by a function, not {create!r}")
        if options is not None and not isinstance(options, type):
            raise TypeError(f"the options of the backend {name!r} must be a class, not {options!r}")
        if isinstance(requires, str):
            raise TypeError(f"`requires` of the backend {name!r} must be a list of module names")
        if serves is not None and not callable(serves):
            raise TypeError(f"`serves` of the backend {name!r} must be a function, not {serves!r}")
        if estimate is not None and not callable(estimate):
            raise TypeError(
                f"`estimate` of the backend {name!r} must be a function, not {estimate!r}"
            )
        entry = BackendEntry(
            create, options, tuple(requires), serves, estimate, saves_kv, needs_path, elsewhere
        )
        super().__call__(name, entry)

    def run_elsewhere(self, name: str) -> bool:
        """Whether the engines of this backend run on other machines."""
        entry = self.get(name)
        return entry is not None and entry.elsewhere
