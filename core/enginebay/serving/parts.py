"""What wings replace of a server, or of `enginebay.open`, before its models are made."""

from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar

from enginebay.config.schema import Config
from enginebay.contract.wing import Wing
from enginebay.models.loading.running_backends import (
    MakeBackend,
    MakeGate,
    local_backend,
    local_gate,
)
from enginebay.plugins import Plugins

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeper:
    """Keeps one value of each class for a server."""

    own: dict[type[Any], Any] = field(default_factory=dict)

    def keep(self, value: object) -> None:
        """Keep what routes or a wing have for this server, one value of each class."""
        self.own[type(value)] = value

    def kept(self, kind: type[T]) -> T:
        """Return the value of this class that is kept."""
        value: T = self.own[kind]
        return value

    def find(self, kind: type[Any]) -> Any:
        """Return what is kept of this class, or of one that is derived from it; None if nothing."""
        return next((value for value in self.own.values() if isinstance(value, kind)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts(Keeper):
    """Parts that `Wing.replace` may replace.

    A wing keeps here what a server makes by itself if it does not `find` one: `KeyUses`, `Peers`,
    and what other wings look for. `for_server`: a server, not `enginebay.open`, gets the parts.
    `closing` is closed when all else has ended.
    """

    plugins: Plugins
    for_server: bool
    make_gate: MakeGate = local_gate
    make_backend: MakeBackend = local_backend
    closing: AsyncExitStack = field(default_factory=AsyncExitStack)


def parts_of(config: Config, plugins: Plugins, wings: Iterable[Wing], *, for_server: bool) -> Parts:
    """The parts for a config, as these wings have them."""
    parts = Parts(plugins=plugins, for_server=for_server)
    for wing in wings:
        parts = wing.replace(parts, config)
    return parts
