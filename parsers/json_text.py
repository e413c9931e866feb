"""JSON, written piece by piece."""

import json
import re

_SURROGATE = re.compile(r"[\ud800-\udfff]")


def in_string(text: str) -> str:
    """`text` as it stands between the quotes of a JSON string.

    Halves of surrogate pairs become escapes: they cannot be sent as UTF-8.
    """
    return _SURROGATE.sub(_escape, json.dumps(text, ensure_ascii=False)[1:-1])


def string(text: str) -> str:
    """`text` as a JSON string."""
    return f'"{in_string(text)}"'


def _escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match.group()):04x}"
