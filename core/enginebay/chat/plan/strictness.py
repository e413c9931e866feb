"""Unsupported parameters: named in a header, or rejected with `strict_params`."""

import logging
from collections.abc import Mapping, Sequence

from enginebay.config.schema import ServerConfig
from enginebay.contract.errors import UnsupportedParameterError

logger = logging.getLogger(__name__)


def accept_ignored(names: Sequence[str], server: ServerConfig) -> None:
    """Log fields that have no effect; `UnsupportedParameterError` with `strict_params`."""
    if not names:
        return
    if server.strict_params:
        raise UnsupportedParameterError(
            f"unsupported parameters: {', '.join(names)}", param=names[0]
        )
    logger.info("unsupported parameters: %.1000s", ", ".join(names))


def accept_clamped(clamped: Mapping[str, int], server: ServerConfig) -> None:
    """Log params that were lowered; `UnsupportedParameterError` with `strict_params`."""
    if not clamped:
        return
    text = ", ".join(f"{name}={value}" for name, value in clamped.items())
    if server.strict_params:
        raise UnsupportedParameterError(
            f"above the limits of the context or the API key; at most: {text}",
            param=next(iter(clamped)),
        )
    logger.info("clamped parameters: %s", text)
