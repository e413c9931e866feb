"""What parsers have in common that go through their text from place to place."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Generic, TypeVar

from enginebay import Parser, Part
from parsers.parts import Parts

Place = TypeVar("Place", bound=Enum)


class PlaceParser(Parser, Generic[Place]):
    """Reads `_text` from `_at` on, as far as it is certain what it is.

    `kept` characters in front of `_at` are kept when more text comes.
    """

    def __init__(self, place: Place, *, kept: int = 0) -> None:
        self._place = place
        self._kept = kept
        self._text = ""
        self._at = 0
        self._parts = Parts()

    def feed(self, text: str) -> list[Part]:
        kept = max(self._at - self._kept, 0)
        self._text = self._text[kept:] + text
        self._at -= kept
        self._read(final=False)
        return self._parts.take()

    def finish(self) -> list[Part]:
        self._read(final=True)
        self._cut_off()
        return self._parts.take()

    @abstractmethod
    def _steps(self) -> Mapping[Place, Callable[[bool], None]]:
        """What reads on at each place; it is told whether the text has ended.

        What moves neither `_at` nor `_place` waits for more text.
        """

    @abstractmethod
    def _cut_off(self) -> None:
        """The text has ended: write what a call that is open still has."""

    def _read(self, *, final: bool) -> None:
        steps = self._steps()
        while self._at < len(self._text):
            before = self._at, self._place
            steps[self._place](final)
            if (self._at, self._place) == before:
                break
