"""What a replica sends by the link of a server: bytes, which Ray carries as they are."""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass

from enginebay import (
    Delta,
    EngineStats,
    MemoryUse,
    ModelInfo,
    ServingError,
    pack_deltas,
    unpack_deltas,
)

Deltas = Sequence[tuple[int, Sequence[Delta | ServingError]]]
"""What requests have gained, by the numbers that their server gave them."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message: what the replica was made for, and what its engine said of the model.

    `version`: see `deployment.version_of`. `node`: the id of its node.
    """

    version: str
    info: ModelInfo
    node: str


@dataclass(frozen=True, slots=True)
class Report:
    """How an engine is: its stats, why it is unavailable if it is, and its memory."""

    stats: EngineStats | None = None
    unavailable: str | None = None
    memory: MemoryUse | None = None


Message = Hello | Report | Deltas

_DELTAS, _OTHER = b"d", b"o"


def pack(message: Message) -> bytes:
    """A message as bytes."""
    if isinstance(message, Hello | Report):
        return _OTHER + pickle.dumps(message, 5)
    return _DELTAS + pack_deltas(message)


def unpack(data: bytes) -> Message:
    """The message again."""
    kind, body = data[:1], memoryview(data)[1:]
    if kind == _DELTAS:
        return unpack_deltas(body)
    message: Hello | Report = pickle.loads(body)
    return message
