"""How long a model stays loaded, as clients say it."""

import re
from math import inf, isnan
from typing import Annotated

from pydantic import AfterValidator

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|ms|s|m|h)")
_WHOLE = re.compile(rf"[+-]?(?:{_PART.pattern})+")
_LONGEST = 100  # characters


def seconds(duration: float | str) -> float:
    """Seconds of a number, or of a text such as `5m`, `1h30m` or `300`; infinite if negative.

    `ValueError` for other texts.
    """
    if isinstance(duration, str):
        text = duration.strip()[:_LONGEST]
        if _WHOLE.fullmatch(text):
            number = sum(float(value) * _UNITS[unit] for value, unit in _PART.findall(text))
            duration = -number if text.startswith("-") else number
        else:
            try:
                duration = float(text)
            except ValueError:
                duration = float("nan")
    if isnan(duration):
        raise ValueError('should be seconds, a text such as "5m" or "1h30m", or -1 for ever')
    return duration if duration >= 0 else inf


def _checked(duration: float | str | None) -> float | str | None:
    if duration in (None, ""):
        return None
    seconds(duration)
    return duration


Duration = Annotated[float | str | None, AfterValidator(_checked)]
"""Seconds, or a text with units as Go has it; negative for ever; an empty text is unset."""
