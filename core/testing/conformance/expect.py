"""How a check says that it failed, or could not be made."""


class Mismatch(AssertionError):
    """The server does something else than it should; the message says what was seen."""


class Unsupported(Mismatch):
    """The server says that it does not support what was asked for (`unsupported_parameter`)."""


class NotShown(Exception):
    """This server or model gives no occasion for the check; the message says why."""


def expect(kept: bool, seen: str) -> None:
    """Raise `Mismatch` with what was seen unless `kept`."""
    if not kept:
        raise Mismatch(seen)
