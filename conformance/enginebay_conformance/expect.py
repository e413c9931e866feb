"""Exceptions by which a check fails or is skipped."""


class Mismatch(AssertionError):
    """The server deviates from the protocol; the message says what was seen."""


class Unsupported(Mismatch):
    """The server says that it does not support what was asked for (`unsupported_parameter`)."""


class NotShown(Exception):
    """The check does not apply to this server or model; the message says why."""


def expect(kept: bool, seen: str) -> None:
    """Raise `Mismatch` with what was seen unless `kept`."""
    if not kept:
        raise Mismatch(seen)
