"""What a backend gets to create an engine of: one model of the config."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

ReportProgress = Callable[[str, float], None]
"""`report(stage, fraction)`: how far loading is, from 0 to 1; may be called on any thread."""


def no_progress(stage: str, fraction: float) -> None:
    """A `ReportProgress` that does nothing."""


ReportBatchSize = Callable[[int | None], None]
"""`report(choices)`: how many choices a backend computes at once from now on, as
`ModelInfo.max_batch_size`; to be called on the event loop."""


def no_batch_size(choices: int | None) -> None:
    """A `ReportBatchSize` that does nothing."""


Isolation = Literal["thread", "process"]
"""Whether an engine runs on a thread of the server's process or in a process of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvStoreSettings:
    """Where the KV of sequences goes that leave an engine's memory.

    `ram` and `disk` are limits in bytes: of the engine's RAM, and of all files in `folder`, which
    engines share. `key_file`: encrypts the files. Paths are absolute.
    """

    ram: int = 0
    folder: str | None = None
    disk: int = 0
    key_file: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSettings:
    """The argument of a backend's `create`: one entry of `models` in the config.

    `path` is absolute when it names something on disk, and empty if the config has none. `base` is
    the config file's folder, where relative paths in `options` start. `options` has been validated
    by the option class the backend registered with, if any. `isolation` is None for the backend's
    own default. `kv_store`: for engines that can save the KV of sequences; None if that is off.
    `report_batch_size`: for a backend whose number of choices changes while it runs; as many more
    or fewer requests are admitted at once, unless the config has a `max_running`. `names`: the
    models of the config that share the engine by `like`, in the order of the config. `aliases`:
    other names for these models.
    """

    name: str
    path: str
    base: str = "."
    options: Any = None
    report_progress: ReportProgress = no_progress
    report_batch_size: ReportBatchSize = no_batch_size
    isolation: Isolation | None = None
    kv_store: KvStoreSettings | None = None
    names: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
