"""The base of parsers that are state machines."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Generic, TypeVar

from enginebay import Parser, Part, Passthrough
from enginebay_parsers.stream.code_spans import CodeSpans, Stretch
from enginebay_parsers.stream.delta_builder import DeltaBuilder

State = TypeVar("State", bound=Enum)


class StateMachine(Parser, Generic[State]):
    """Reads `_text` from `_at` on, as far as it is certain what it is.

    In the state `outside`, text without the first characters of `marks` is content. In `prose`, the
    states with that one among them in which no call has begun, code is content too. `ends`: the
    tags that are dropped there after a call whose end is due.
    """

    def __init__(
        self,
        state: State,
        *,
        outside: State,
        prose: Sequence[State],
        marks: Sequence[str],
        ends: Sequence[str],
    ) -> None:
        self._state = state
        self._outside = outside
        self._code = CodeSpans(marks, lambda: self._state in prose)
        self._stops = "".join(sorted({mark[0] for mark in marks}))
        self._text = ""
        self._at = 0
        self._calls = 0
        self._ends = tuple(ends)
        self._end_is_due = False
        self._deltas = DeltaBuilder()

    def feed(self, text: str) -> list[Part]:
        for stretch in self._code.feed(text):
            self._take(stretch)
        return self._deltas.take()

    def passthrough(self) -> Passthrough | None:
        held = self._at < len(self._text) or self._state is not self._outside
        stops = None if held else self._code.stops(self._stops)
        return None if stops is None else Passthrough("content", stops)

    def finish(self) -> list[Part]:
        for stretch in self._code.finish():
            self._take(stretch)
        rest = self._text[self._at :]
        due = self._end_is_due and self._state is self._outside
        if due and rest and any(end.startswith(rest) for end in self._ends):
            self._at = len(self._text)
        self._read(final=True)
        self._cut_off()
        return self._deltas.take()

    def _take(self, stretch: Stretch) -> None:
        if stretch.is_code:
            self._deltas.content(self._text[self._at :] + stretch.text)
            self._text, self._at = "", 0
            self._end_is_due |= self._state is not self._outside and self._calls > 0
            self._state = self._outside
            return
        self._text = self._text[self._at :] + stretch.text
        self._at = 0
        self._read(final=False)

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
