"""Messages between the event loop and an engine: commands one way, events the other."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from enginebay.contract.errors import ServingError
from enginebay.contract.types import Delta, EngineStats, GenerationRequest, ModelInfo


@dataclass(frozen=True, slots=True)
class Abort:
    """Forget a request."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Call:
    """Call the method of the `Engine` that has this name; the `Answer` has the same number."""

    number: int
    method: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Cancel:
    """Nobody awaits the `Call` of this number any longer."""

    number: int


@dataclass(frozen=True, slots=True)
class Ping:
    """Answer between two steps, with the same number."""

    number: int


class Close:
    """Close the engine; nothing is sent after it."""


Command = GenerationRequest | Abort | Call | Cancel | Ping | Close


@dataclass(frozen=True, slots=True)
class Started:
    """The engine is built and takes commands."""

    info: ModelInfo


@dataclass(frozen=True, slots=True)
class NotStarted:
    """The engine could not be built."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Answer:
    """What a `Call` returned or raised; None for a `Ping`."""

    number: int
    result: Any


@dataclass(frozen=True, slots=True)
class Died:
    """The engine raised an exception and is being closed."""

    reason: str


@dataclass(frozen=True, slots=True)
class Exited:
    """The last event: the engine is gone and everything is freed.

    `reason` is None after `NotStarted` or `Died`, and after a `Close`.
    """

    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """The engine's stats, at intervals while there is work and once when it is done."""

    stats: EngineStats


Output = tuple[str, Delta | ServingError]
Event = Started | NotStarted | list[Output] | Report | Answer | Died | Exited
"""A list is the output of one step."""
