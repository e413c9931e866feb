"""How much of a limit of a key is used."""

import math
from dataclasses import dataclass

from enginebay.server.usage.token_window import WINDOW


@dataclass(frozen=True, slots=True)
class LimitUse:
    """A limit, and how much of it is used; `reset_s`: seconds after which nothing is, if known."""

    limit: int
    used: int
    reset_s: float | None = None

    @property
    def remaining(self) -> int:
        """What may still be used."""
        return max(0, self.limit - self.used)


def duration(seconds: float) -> str:
    """As OpenAI writes it: `6m0s`, `49.500s`."""
    if seconds < WINDOW:
        return f"{seconds:.3f}s".replace(".000s", "s")
    minutes, left = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{left}s" if hours else f"{minutes}m{left}s"
