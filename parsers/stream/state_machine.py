"""The base of parsers that are state machines."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Generic, TypeVar

from enginebay import Parser, Part, Passthrough
from parsers.stream.delta_builder import DeltaBuilder

State = TypeVar("State", bound=Enum)


class StateMachine(Parser, Generic[State]):
    """Reads `_text` from `_at` on, as far as it is certain what it is.

    `kept` characters in front of `_at` are kept when more text comes. In the state `outside`, text
    without any of `stops` is content.
    """

    def __init__(self, state: State, *, outside: State, stops: str, kept: int = 0) -> None:
        self._state = state
        self._outside = outside
        self._content = Passthrough("content", stops)
        self._stops = tuple(stops)
        self._kept = kept
        self._text = ""
        self._at = 0
        self._deltas = DeltaBuilder()

    def feed(self, text: str) -> list[Part]:
        kept = max(self._at - self._kept, 0)
        self._text = self._text[kept:] + text
        self._at -= kept
        self._read(final=False)
        return self._deltas.take()

    def passthrough(self) -> Passthrough | None:
        held = self._at < len(self._text) or self._text.endswith(self._stops)
        return None if held or self._state is not self._outside else self._content

    def finish(self) -> list[Part]:
        self._read(final=True)
        self._cut_off()
        return self._deltas.take()

    @abstractmethod
    def _steps(self) -> Mapping[State, Callable[[bool], None]]:
        """What reads on in each state; it is told whether the text has ended.

        What moves neither `_at` nor `_state` waits for more text.
        """

    @abstractmethod
    def _cut_off(self) -> None:
        """The text has ended: write what a call that is open still has."""

    def _read(self, *, final: bool) -> None:
        steps = self._steps()
        while self._at < len(self._text):
            before = self._at, self._state
            steps[self._state](final)
            if (self._at, self._state) == before:
                break
