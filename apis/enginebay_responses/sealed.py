"""Thought as an opaque text, which clients send back with the next request."""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode

_KEY = "enginebay_thought_v1"


def sealed(thought: str) -> str:
    """A thought as clients get it: encoded, not encrypted, as it is no secret from them."""
    return urlsafe_b64encode(json.dumps({_KEY: thought}).encode()).decode()


def unsealed(text: str | None) -> str | None:
    """The thought in a text of `sealed`; None if the text is another server's."""
    try:
        found = json.loads(urlsafe_b64decode(text or ""))
        thought = found.get(_KEY)
    except (ValueError, RecursionError, AttributeError):
        return None
    return thought if isinstance(thought, str) else None
