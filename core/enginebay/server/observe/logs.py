"""Log lines that know which request they are about, as text or as JSON."""

import json
import logging
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

request_of: ContextVar[Mapping[str, Any] | None] = ContextVar("request_of", default=None)
"""The `state` of the HTTP request that is being answered, in the tasks that answer it."""

_STANDARD = frozenset(
    {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "about", "color_message"}
)
"""Attributes that every record has; all others are fields of the event."""

_CONTROLS = {*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029} - set(map(ord, "\n\t"))
_ESCAPED = {code: repr(chr(code))[1:-1] for code in _CONTROLS}


class AddRequest(logging.Filter):
    """Gives each record the `request_id`, `model` and `key` (its name) that it is about.

    What the record says itself takes precedence; records of an engine's process say what they know.
    `about` is the id in brackets, unless the message has it anyway.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        running = (request_of.get() or {}).get("running")
        if running is not None:
            known = {
                "request_id": running.id,
                "model": running.model,
                "key": running.key_name,
            }
            for name, value in known.items():
                if value is not None and not hasattr(record, name):
                    setattr(record, name, value)
        id = getattr(record, "request_id", None)
        record.about = f" [{id}]" if id and id not in record.getMessage() else ""
        return True


class TextFormatter(logging.Formatter):
    """Lines for people, in which nothing that clients send looks like a line of its own.

    Further lines of a record are indented, and control characters are written as Python does: they
    would change what a terminal shows.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line, or the lines."""
        return super().format(record).translate(_ESCAPED).replace("\n", "\n    ")


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `time`, `level`, `logger`, `message`, then what else is known."""

    def format(self, record: logging.LogRecord) -> str:
        """The line; what is no JSON in a field is written as text."""
        time = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {k: v for k, v in vars(record).items() if k not in _STANDARD}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        elif record.exc_text:  # of another process
            line["exception"] = record.exc_text
        return json.dumps(line, default=str)
