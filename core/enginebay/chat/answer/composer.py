"""The wire form of an answer, in whichever API."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self
from uuid import uuid4

from pydantic import BaseModel
from pydantic_core import to_json

from enginebay.contract.errors import ServingError
from enginebay.contract.types import Update


@dataclass(slots=True)  # one a token
class Frame:
    """One event or line of a stream: JSON, and the event's name in APIs whose events have names."""

    json: bytes
    event: str | None = None


class FrameTemplate:
    """A frame of which only some values vary; in `frame`, each of `marks` stands for one of them.

    It is serialized once from its schema and split where the marks are. Bytes, as a mark or as a
    value, are JSON already. A value whose mark is None is not in the frame.
    """

    __slots__ = ("_event", "_json", "_numbers")

    def __init__(self, frame: Frame, marks: Sequence[object]) -> None:
        self._event = frame.event
        written = [
            mark if mark is None or isinstance(mark, bytes) else to_json(mark) for mark in marks
        ]
        cuts = b"|".join(re.escape(json) for json in written if json is not None)
        pieces = re.split(b"(" + cuts + b")", frame.json)
        self._json = pieces
        self._numbers = [(at, written.index(pieces[at])) for at in range(1, len(pieces), 2)]

    @classmethod
    def of(cls, write: Callable[..., Frame], values: int = 1) -> Self:
        """The template of what `write` makes of so many values."""
        marks = [uuid4().hex for _ in range(values)]
        return cls(write(*marks), marks)

    def fill(self, *values: object) -> Frame:
        """The frame with these values, one for each mark."""
        json = self._json.copy()
        for at, number in self._numbers:
            value = values[number]
            json[at] = value if type(value) is bytes else to_json(value)
        return Frame(b"".join(json), self._event)


class Composer(ABC):
    """What the answer to one request is on the wire, in one API: frames of a stream, or all of it.

    Both are made of the same updates, read once.
    """

    @property
    @abstractmethod
    def id(self) -> str:
        """The answer's id."""

    @abstractmethod
    def frames(self, update: Update) -> list[Frame]:
        """What a stream sends of an update; the first one opens it."""

    @abstractmethod
    def ending(self) -> list[Frame]:
        """What a stream ends with, behind the last update."""

    @abstractmethod
    def failed(self, error: ServingError) -> list[Frame]:
        """What a stream that has been opened ends with instead, when this goes wrong."""

    @abstractmethod
    def add(self, update: Update) -> None:
        """Collect an update for `whole_json`."""

    @abstractmethod
    def whole_json(self) -> bytes:
        """Everything collected, as one answer."""


def dumped(body: BaseModel) -> bytes:
    """A body as JSON, without the fields that are not set."""
    return body.model_dump_json(exclude_unset=True).encode()
