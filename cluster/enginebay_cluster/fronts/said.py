"""What fronts and the ledger tell each other: plain data that can be pickled.

A front is a server of a cluster whose servers share their limits. What it holds has a ticket: a
number of the front's own, which only grows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from enginebay.contract.errors import ServingError
from enginebay.models.admission_queue import GateSize
from enginebay.server.peers import SettingKind
from enginebay.server.usage.records import Trouble
from enginebay.server.usage.request_count import RequestsSeen


class UnknownFrontError(ServingError):
    """The ledger does not know the front: it is a new one, or the front was silent for long."""

    code: ClassVar[str | None] = "unknown_front"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A place at the gate of an engine: see `Gate.join`."""

    engine: str
    choices: int
    model: str
    key: str | None
    priority: int
    goes_on: bool


@dataclass(frozen=True, slots=True)
class Counted:
    """A request that counts for the limits of the key of this name."""

    key: str


Holding = Turn | Counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """A sign of life: the front's n-th. `alive`: all tickets up to `newest` that are still held."""

    number: int
    newest: int
    alive: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SettingKey:
    """What was set, of which model; without a name, of all."""

    kind: SettingKind
    model: str | None


@dataclass(frozen=True, slots=True)
class Setting:
    """Its value. Of two the one with the later version holds: milliseconds since 1970, a front."""

    version: tuple[int, str]
    value: Any


Settings = Mapping[SettingKey, Setting]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """What the ledger has to know of a front. `runs`: what was let in or counted, by ticket."""

    name: str
    beat: Beat
    runs: Mapping[int, Holding]
    gates: Mapping[str, GateSize]
    settings: Settings


@dataclass(frozen=True, slots=True)
class Entered:
    """Whether a request counts now, or why not, and all requests of its key after that."""

    refused: ServingError | None
    seen: RequestsSeen


@dataclass(frozen=True, slots=True)
class KeyTotals:
    """What a key has used. `elsewhere`: tokens that other fronts have handed on, ever; `minute`:
    those of the last 60 seconds, of all fronts; `today`: those of today, of all.
    """

    elsewhere: int
    minute: int
    today: int
    seen: RequestsSeen


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the ledger says of keys whose use has changed since its `version` was another one."""

    ledger: str
    version: int
    day: str
    keys: Mapping[str, KeyTotals]
    trouble: Trouble | None


@dataclass(frozen=True, slots=True)
class Order:
    """Something that a front is to do for another one; it answers by the number."""

    number: int
    kind: str
    value: Any
