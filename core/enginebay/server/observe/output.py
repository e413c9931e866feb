"""The stdout and stderr of a server, which never wait for whoever reads them."""

import io
import logging
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import Any, TextIO

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

logger = logging.getLogger(__name__)

_MOST = 1 << 20
"""Bytes that may wait to be written. Further lines are dropped."""

_PIECE = 1 << 16
"""Bytes that are written at once."""

_PATIENCE = 1.0
"""Seconds without progress after which the end of the server does not wait for a reader."""


class Output(Collector):
    """A context manager that writes this process's stdout and stderr on threads of their own.

    A reader that stops reading, for example a terminal after Ctrl-S, then stops neither the event
    loop nor an engine. Lines for which there is no room are dropped and counted. The log has a line
    about them as soon as somebody reads again. Logging handlers of stderr follow.
    """

    def __init__(self) -> None:
        self._streams: list[_Stream] = []

    def __enter__(self) -> "Output":
        for name in ("stdout", "stderr"):
            found = getattr(sys, name)
            if (raw := _raw(found)) is not None:
                self._streams.append(_Stream(name, found, raw))
                _replace(name, self._streams[-1])
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for stream in self._streams:
            if stream.end():
                _replace(stream.name, stream.behind)  # else what is still printed would wait

    def describe(self) -> Iterator[Metric]:
        """Return nothing: see `Metrics`."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield a counter of dropped lines."""
        yield CounterMetricFamily(
            "enginebay:log_lines_dropped",
            "Lines of the log and of other output that were dropped, because nothing read them.",
            value=sum(stream.dropped for stream in self._streams),
        )


class _Stream(io.TextIOBase):
    """A text stream whose lines are written to `raw`, the file behind it, on a thread.

    After a line has been dropped, all are dropped until the thread has written what waits. So the
    line about them stands where they would have been.
    """

    def __init__(self, name: str, behind: TextIO, raw: io.RawIOBase) -> None:
        behind.flush()
        self.name = name
        self.behind = behind
        self.dropped = 0
        self._raw = raw
        self._line = ""
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._full = False
        self._unreported = 0
        self._ended = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"enginebay-{name}", daemon=True)
        self._thread.start()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.behind.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self.behind.errors

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self.behind.isatty()

    def fileno(self) -> int:
        return self.behind.fileno()

    def write(self, text: str) -> int:
        """Keep the text until its line ends; then the thread has it."""
        with self._changed:
            self._line += text
            if "\n" in text:
                self.flush()
        return len(text)

    def flush(self) -> None:
        """Leave what there is of a line to the thread, and return at once."""
        with self._changed:
            line, self._line = self._line, ""
            if not line:
                return
            data = line.replace("\n", os.linesep).encode(self.encoding, self.errors or "strict")
            self._full = self._full or self._size > _MOST
            if self._full:
                self._drop(data)
            else:
                self._waiting.append(data)
                self._size += len(data)
                self._changed.notify_all()

    def end(self) -> bool:
        """Write what waits, and end the thread; False if nobody reads it."""
        self.flush()
        with self._changed:
            while left := self._size:
                if not self._changed.wait_for(lambda: self._size < left, _PATIENCE):
                    return False
            self._ended = True
            self._changed.notify_all()
        self._thread.join()
        return True

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ended)
                if not self._waiting:
                    return
                data = b"".join(self._waiting)
                self._waiting.clear()
            for start in range(0, len(data), _PIECE):
                piece = data[start : start + _PIECE]
                written = self._written(piece)
                if not written:
                    with self._changed:
                        self._drop(piece)
                if start + _PIECE >= len(data):
                    self._catch_up(report=written)
                with self._changed:
                    self._size -= len(piece)
                    self._changed.notify_all()

    def _catch_up(self, *, report: bool) -> None:
        """If nothing waits any more, take lines again, and log how many are missing before them."""
        with self._changed:
            if self._waiting:
                return
            self._full = False
            lines = self._unreported if report else 0
            self._unreported -= lines
        if lines:
            logger.warning("%s: %d lines were dropped, because nothing read them", self.name, lines)

    def _drop(self, data: bytes) -> None:
        lines = max(1, data.count(b"\n"))
        self.dropped += lines
        self._unreported += lines

    def _written(self, data: bytes) -> bool:
        """Write the bytes, however long that takes; False if the file takes none any more."""
        left = memoryview(data)
        try:
            while left:
                written = self._raw.write(left)
                if written is None:  # whoever started the server has made its pipe non-blocking
                    select.select([], [self._raw], [])
                else:
                    left = left[written:]
        except OSError:
            return False
        return True


def _raw(stream: Any) -> io.RawIOBase | None:
    """The unbuffered file behind stdout or stderr; None if there is no such file."""
    try:
        stream.fileno()
        buffer = stream.buffer
    except (AttributeError, OSError, ValueError):
        return None
    raw: io.RawIOBase = getattr(buffer, "raw", buffer)
    return raw


def _replace(name: str, new: Any) -> None:
    """Make a stream this process's `sys.stdout` or `sys.stderr`, also for the log."""
    old = getattr(sys, name)
    setattr(sys, name, new)
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is old:
            handler.setStream(new)
