"""`enginebay.open`, which imports what it needs when it is called.

The processes of engines import `enginebay`, too, and need nothing of this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from os import PathLike
from typing import TYPE_CHECKING, Any

from enginebay.contract.backend_settings import Isolation

if TYPE_CHECKING:
    from enginebay.serving.local import LocalModel


def open(
    path: str | PathLike[str],
    *,
    backend: str | None = None,
    options: Mapping[str, Any] | None = None,
    isolation: Isolation = "thread",
    report_progress: Callable[[str, str, float], None] | None = None,
) -> AbstractAsyncContextManager[LocalModel]:
    """Load the model at a path, or the models of a config file (`.yml`), while the block runs:

        async with enginebay.open("models/mine.gguf") as model:
            answer = await model.chat("What is 2 + 3?")

    A path may be a name on a hub, `hf://owner/repository:QUANT`: the model is then downloaded into
    the folder `models`, where the script runs, unless it is there already.

    `backend` and its `options` are what they are in a model's entry of a config, and given for a
    path only; without a `backend`, the first one that recognises it is used.
    `report_progress(model, stage, fraction)` is called on any thread.

    Engines run on threads, whatever the config says. With `isolation="process"` they run in
    processes of their own; a script then has to be guarded by Python's
    `if __name__ == "__main__":`, as with anything that starts processes.

    `ConfigError` for what cannot be loaded as it is described, `ModelFailedError` for what failed.
    """
    from enginebay.serving.local import opened

    return opened(path, backend, options, isolation, report_progress)
