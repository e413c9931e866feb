"""A cache with a limit in bytes that forgets what has not been used for longest."""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar


class Sized(Protocol):
    """Something that takes so many bytes of memory."""

    @property
    def nbytes(self) -> int: ...


Value = TypeVar("Value", bound=Sized)


class SizedCache(Generic[Value]):
    """Values by key, from any thread; the one stored last is kept however large it is."""

    def __init__(self, limit: int) -> None:
        """`limit`: bytes of all values together."""
        self._limit = limit
        self._values: OrderedDict[Hashable, Value] = OrderedDict()
        self._lock = threading.Lock()
        self.nbytes = 0

    def __contains__(self, key: Hashable) -> bool:
        return key in self._values

    def get(self, key: Hashable) -> Value | None:
        """The value, which is now the one used last; None if it is not there."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: Hashable, value: Value) -> None:
        """Store a value, in the place of an older one."""
        with self._lock:
            if (old := self._values.pop(key, None)) is not None:
                self.nbytes -= old.nbytes
            self._values[key] = value
            self.nbytes += value.nbytes
            while self.nbytes > self._limit and len(self._values) > 1:
                self.nbytes -= self._values.popitem(last=False)[1].nbytes

    def pop(self, key: Hashable) -> Value | None:
        """The value, which is forgotten; None if it is not there."""
        with self._lock:
            value = self._values.pop(key, None)
            self.nbytes -= value.nbytes if value is not None else 0
            return value

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._values.clear()
            self.nbytes = 0
