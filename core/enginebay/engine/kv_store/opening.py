"""The store of an engine, as the settings say."""

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from enginebay.contract.backend_settings import BackendSettings
from enginebay.engine.kv_store.seals import Encryption, read_secret
from enginebay.engine.kv_store.state_file import StateFiles
from enginebay.engine.kv_store.state_folder import StateFolder
from enginebay.engine.kv_store.store import KvStore

logger = logging.getLogger(__name__)


def open_kv_store(
    settings: BackendSettings, layout: str | None, *, cuts: bool, kind: Mapping[str, Any]
) -> KvStore | None:
    """The store for the sequences of a model, None if that is off or impossible.

    `layout`: `Runner.state_layout`. `kind`: what else a state depends on, by what users call it:
    the model's files, the library's version, settings. Blocks briefly. `BackendUnavailableError`
    for a folder or key file that cannot be used.
    """
    asked = settings.kv_store
    if asked is None or not (asked.ram or asked.folder):
        return None
    if layout is None:
        logger.info(
            "%s: loading.cache_ram and cache_dir have no effect on it: the KV cache that it runs "
            "with cannot be saved",
            settings.name,
        )
        return None
    folder = None
    if asked.folder:
        secret = read_secret(Path(asked.key_file)) if asked.key_file else None
        files = StateFiles(partial(Encryption, secret) if secret else None)
        full = {**{name: str(value) for name, value in kind.items()}, "layout of the cache": layout}
        name = Path(settings.path).name
        folder = StateFolder(Path(asked.folder), name, full, files, asked.disk)
    store = KvStore(asked.ram, folder, cuts=cuts)
    if folder:
        logger.info(
            "%s: %d saved sequences, %.2f GiB, in %s",
            settings.name,
            len(store),
            store.disk_bytes / 2**30,
            asked.folder,
        )
    return store
