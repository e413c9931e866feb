"""One tool call, as its text arrives."""

import json
from abc import ABC, abstractmethod

from enginebay_parsers.stream.json_scanner import JsonScanner


class Call(ABC):
    """Reads one tool call, each character once.

    `name`, `id`: None until it is certain that this is a call and all is known that comes with its
    name. `over`: nothing that follows belongs to it; without a name by then, it was not a call.
    `is_content`: what follows is no call but the answer.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.id: str | None = None
        self.over = False
        self.is_content = False
        self._scanner: JsonScanner | None = None
        self._arguments: list[str] = []
        self._watched: JsonScanner | None = None

    @property
    def in_string(self) -> bool:
        """Whether the text so far ends in a JSON string."""
        return self._scanner is not None and self._scanner.in_string

    @property
    def sound(self) -> bool | None:
        """Whether the watched string closed properly; None while that is unknown."""
        return self._watched.sound if self._watched else True

    def watch(self) -> bool:
        """Makes `sound` report how the open string ends, if it is in arguments in brackets."""
        if self._scanner is None or not self._in_arguments():
            return False
        self._watched = self._scanner
        self._watched.watch()
        return True

    @abstractmethod
    def feed(self, text: str, at: int) -> int:
        """Reads `text` from `at` up to its end or until the call is over; returns where."""

    def take(self) -> str:
        """The arguments that arrived since the last call."""
        text = "".join(self._arguments)
        self._arguments.clear()
        return text

    @abstractmethod
    def end(self, *, cut_off: bool = False) -> None:
        """Nothing more comes: something else follows, or the text is cut off.

        A call that is cut off keeps the arguments that came and gets no others, not even `{}`: it
        must not look whole.
        """

    @abstractmethod
    def _in_arguments(self) -> bool:
        """Whether the value that is being read is arguments in brackets."""


def decode(text: str) -> str | None:
    """The value of a JSON string; None if it is invalid or has a lone surrogate."""
    value = load(text)
    if not isinstance(value, str) or any("\ud800" <= char <= "\udfff" for char in value):
        return None
    return value


def load(text: str) -> object:
    """The value of JSON text; None if it is invalid."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
