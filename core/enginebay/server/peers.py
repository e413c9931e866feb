"""Other servers that have limits and settings in common with this one."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from enginebay.config.schema import ModelConfig
from enginebay.server.usage.records import Trouble

if TYPE_CHECKING:  # or the process that has what servers share would import all about models
    from enginebay.models.registry import Models

T = TypeVar("T")
Handler = Callable[[Any], Awaitable[Any]]
SettingKind = Literal["loras", "template", "preset"]


@dataclass(frozen=True, slots=True)
class Answers:
    """What servers have answered, by their names, and the names of those that did not in time."""

    given: list[tuple[str, Any]] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)


class Peers:
    """The peers of a server that has none. A wing keeps another one for a server that has some.

    `name` is this server's name among its peers, None without any. `handlers` answer what peers
    ask, by kind.
    """

    name: str | None = None

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {}

    @property
    def outage(self) -> Trouble | None:
        """Why limits that the servers share cannot be reached, and since when."""
        return None

    def delays(self, model: ModelConfig) -> bool:
        """Whether requests for this model have to wait because of an outage."""
        return False

    async def ask(self, kind: str, value: Any, *, patience: float | None = None) -> Answers:
        """Ask all peers. `ServingError` if they cannot be reached for `patience` seconds."""
        return Answers()

    async def refresh_positions(self, models: "Models") -> None:
        """Find out how many requests of all servers are ahead of those that wait here."""

    async def change(
        self,
        kind: SettingKind,
        model: str | None,
        apply: Callable[[], Awaitable[T]],
        value: Callable[[], Any],
    ) -> T:
        """Change a setting of a model, or of all, here by `apply` and then at all peers.

        `value` returns the new setting as data: pairs of names and scalings of LoRAs; the name of a
        template; the name and the overrides of a preset. Return what `apply` returns. If it raises,
        peers are not told.
        """
        return await apply()
