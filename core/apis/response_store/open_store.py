"""The store that the config asks for."""

from pathlib import Path

from core.apis.response_store.memory_store import MemoryStore
from core.apis.response_store.retention import Limits
from core.apis.response_store.store import ResponseStore
from core.config.schema import ServerConfig


def open_store(config: ServerConfig, base: Path) -> ResponseStore | None:
    """The store for answers of `/v1/responses`; None if they are not kept.

    `base`: the folder that the path of a file is relative to.
    """
    if config.response_store == "off":
        return None
    limits = Limits(
        entries=config.response_store_entries,
        bytes=config.response_store_bytes,
        seconds=config.response_store_days * 86_400,
    )
    return MemoryStore(limits)
