"""Messages between the server and an engine's process, as bytes."""

import io
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from multiprocessing.connection import Connection
from operator import attrgetter
from typing import Any, cast

from enginebay.contract.backend_settings import BackendSettings, ReportProgress, no_progress
from enginebay.contract.engine import Engine
from enginebay.contract.errors import ServingError
from enginebay.contract.types import Delta

_PROTOCOL = 5
_REPORT_PROGRESS = "report_progress"


@dataclass(frozen=True, slots=True)
class Progress:
    """A call of `ReportProgress`."""

    stage: str
    fraction: float


def send(connection: Connection, message: object) -> None:
    """Send one message; `OSError` if the other side is gone."""
    if isinstance(message, list):
        message = [(request_id, _packed(item)) for request_id, item in message]
    connection.send_bytes(pickle.dumps(message, _PROTOCOL))


def receive(connection: Connection) -> Any:
    """Wait for one message; `EOFError` or `OSError` when the other side is gone."""
    message = pickle.loads(connection.recv_bytes())
    if isinstance(message, list):
        return [(request_id, _unpacked(item)) for request_id, item in message]
    return message


def pack_deltas(messages: Sequence[tuple[int, Sequence[Delta | ServingError]]]) -> bytes:
    """What requests have gained, each with a number of the sender's, as bytes."""
    packed = [(number, [_packed(item) for item in items]) for number, items in messages]
    return pickle.dumps(packed, _PROTOCOL)


def unpack_deltas(data: bytes | memoryview) -> list[tuple[int, list[Delta | ServingError]]]:
    """What `pack_deltas` packed. Only for bytes of a sender that may run any code here."""
    return [(number, [_unpacked(item) for item in items]) for number, items in pickle.loads(data)]


# The deltas of a step, which are most of what is sent, are sent as tuples of all their fields: a
# dataclass with slots pickles itself field by field in Python, several times as slow.

_FIELDS = tuple(field.name for field in fields(Delta))
_values = attrgetter(*_FIELDS)


def _packed(item: Delta | ServingError) -> tuple[Any, ...] | ServingError:
    return item if isinstance(item, ServingError) else _values(item)


def _unpacked(item: tuple[Any, ...] | ServingError) -> Delta | ServingError:
    if isinstance(item, ServingError):
        return item
    delta = object.__new__(Delta)
    for name, value in zip(_FIELDS, item, strict=True):
        object.__setattr__(delta, name, value)
    return delta


def pack_factory(create_engine: Callable[[], Engine]) -> tuple[bytes, ReportProgress]:
    """A factory as bytes, and its progress callback, which stays in this process."""
    buffer = io.BytesIO()
    pickler = _FactoryPickler(buffer, _PROTOCOL)
    pickler.dump(create_engine)
    return buffer.getvalue(), pickler.report_progress


def unpack_factory(packed: bytes, report_progress: ReportProgress) -> Callable[[], Engine]:
    """The factory again, with another progress callback."""
    unpickler = _FactoryUnpickler(io.BytesIO(packed))
    unpickler.report_progress = report_progress
    return cast(Callable[[], Engine], unpickler.load())


class _FactoryPickler(pickle.Pickler):
    report_progress: ReportProgress = staticmethod(no_progress)

    def persistent_id(self, obj: object) -> str | None:
        if isinstance(obj, BackendSettings):
            self.report_progress = obj.report_progress
        return _REPORT_PROGRESS if obj is self.report_progress else None


class _FactoryUnpickler(pickle.Unpickler):
    report_progress: ReportProgress

    def persistent_load(self, pid: object) -> object:
        assert pid == _REPORT_PROGRESS
        return self.report_progress


def portable(error: BaseException) -> BaseException:
    """The error, or its text if it does not survive pickling."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
