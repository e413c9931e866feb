"""The bytes that cross between the server and an engine's process."""

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, cast

from core.contract.engine import Engine
from core.contract.types import BackendSettings, Delta, ReportProgress, no_progress

_PROTOCOL = 5
_REPORT_PROGRESS = "report_progress"


@dataclass(frozen=True, slots=True)
class Progress:
    """A call of `ReportProgress`."""

    stage: str
    fraction: float


def send(connection: Connection, message: object) -> None:
    """Send one message; `OSError` when the other side is gone."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, _PROTOCOL)
    pickler.dispatch_table = {Delta: _reduced}
    pickler.dump(message)
    connection.send_bytes(buffer.getbuffer())


def receive(connection: Connection) -> Any:
    """Wait for one message; `EOFError` or `OSError` when the other side is gone."""
    return pickle.loads(connection.recv_bytes())


def _reduced(delta: Delta) -> tuple[Any, ...]:
    # A dataclass with slots pickles itself field by field in Python: four times as slow.
    return _delta, (
        delta.index,
        delta.text,
        delta.token_ids,
        delta.logprobs,
        delta.finish_reason,
        delta.stop_reason,
        delta.prefill_tokens,
        delta.cached_tokens,
        delta.prompt_logprobs,
        delta.grammar_init_s,
        delta.grammar_s,
        delta.parts,
        delta.usage,
    )


def _delta(
    index: int,
    text: str,
    token_ids: Any,
    logprobs: Any,
    finish_reason: Any,
    stop_reason: Any,
    prefill_tokens: int,
    cached_tokens: int,
    prompt_logprobs: Any,
    grammar_init_s: float,
    grammar_s: float,
    parts: Any,
    usage: Any,
) -> Delta:
    return Delta(
        index=index,
        text=text,
        token_ids=token_ids,
        logprobs=logprobs,
        finish_reason=finish_reason,
        stop_reason=stop_reason,
        prefill_tokens=prefill_tokens,
        cached_tokens=cached_tokens,
        prompt_logprobs=prompt_logprobs,
        grammar_init_s=grammar_init_s,
        grammar_s=grammar_s,
        parts=parts,
        usage=usage,
    )


def pack_factory(create_engine: Callable[[], Engine]) -> tuple[bytes, ReportProgress]:
    """A factory as bytes, and the progress callback it had, which stays on this side."""
    buffer = io.BytesIO()
    pickler = _FactoryPickler(buffer, _PROTOCOL)
    pickler.dump(create_engine)
    return buffer.getvalue(), pickler.report_progress


def unpack_factory(packed: bytes, report_progress: ReportProgress) -> Callable[[], Engine]:
    """The factory again, with this callback in the place of the other one."""
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
