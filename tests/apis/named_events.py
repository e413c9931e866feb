"""Streams whose events are named by the type in their data."""

import json
from typing import Any


def named_events(text: str) -> list[dict[str, Any]]:
    """The events of a stream. MSG-2, RESP-8: each is named by its type."""
    events = []
    for frame in text.strip("\n").split("\n\n"):
        name, data = frame.split("\n")
        event: dict[str, Any] = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events
