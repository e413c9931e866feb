"""Settings that hold at all servers that share their limits, not only at the one that is told."""

from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeVar

from fastapi import Request

from enginebay.server.services import services

T = TypeVar("T")


async def everywhere(
    http: Request,
    kind: Literal["loras", "template", "preset"],
    model: str | None,
    apply: Callable[[], Awaitable[T]],
    value: Callable[[], Any],
) -> T:
    """Set something here by `apply`, and at other servers: see `SharedSettings.change`."""
    settings = services(http).settings
    return await (settings.change(kind, model, apply, value) if settings else apply())
