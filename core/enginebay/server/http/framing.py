"""How frames of a stream are written: what an API's clients read it by."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from enginebay.chat.answer.composer import Frame
from enginebay.server.http import sse
from enginebay.serving.answer import WriteFrames

NDJSON_TYPE = "application/x-ndjson"


@dataclass(frozen=True, slots=True)
class Framing:
    """`write` makes what is written at once of frames; `end` comes behind them.

    `ping` is sent whenever nothing else is; None: nothing can be.
    """

    media_type: str
    write: WriteFrames
    end: bytes = b""
    ping: bytes | None = sse.PING


def _data(frames: Sequence[Frame]) -> Iterable[bytes]:
    if len(frames) == 1:  # as nearly all are
        return (sse.data(frames[0].json),)
    return (b"".join(sse.data(frame.json) for frame in frames),)


def _named(frames: Sequence[Frame]) -> Iterable[bytes]:
    if len(frames) == 1:
        return (sse.named(frames[0].event or "message", frames[0].json),)
    return (b"".join(sse.named(frame.event or "message", frame.json) for frame in frames),)


def _lines(frames: Sequence[Frame]) -> Iterable[bytes]:
    return [frame.json + b"\n" for frame in frames]


DATA = Framing(sse.MEDIA_TYPE, _data, sse.DONE)
"""OpenAI's chats and completions: events without names, `[DONE]` at the end."""

EVENTS = Framing(sse.MEDIA_TYPE, _data)
"""The same without `[DONE]`, where the last event says that it is the last."""

NAMED = Framing(sse.MEDIA_TYPE, _named)
"""Events with names, and nothing behind the last one."""

NAMED_WITH_PINGS = Framing(sse.MEDIA_TYPE, _named, ping=sse.named("ping", b'{"type":"ping"}'))
"""The same, where a ping is an event."""

NDJSON = Framing(NDJSON_TYPE, _lines, ping=None)
"""A line of JSON at a time: there are clients that cannot read two at once, nor an empty one."""
