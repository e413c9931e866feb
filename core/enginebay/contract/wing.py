"""Wings: optional parts of the server that are packages of their own."""

from abc import ABC
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from enginebay.contract.errors import ServingError


@dataclass(frozen=True, slots=True)
class ErrorForm:
    """The errors of an API.

    `body` makes the JSON object of the error, its status and the id of the request. `id_header`
    names the response header that also has this id, if there is one.
    """

    body: Callable[[ServingError, int, str], Mapping[str, Any]]
    id_header: str | None = None


class Wing(ABC):
    """A part of the server that registers through the hook `register_wings`.

    Its kernel is an `enginebay.kernel.Kernel`, its config a `Config`, its routers are FastAPI's:
    only the modules of a wing that runs import these. A wing keeps what belongs to one server with
    `kernel.keep`, because servers of one process share the wing. Every method runs on the event
    loop of the server, or before there is one.

    A wing is first-party code. It may use all of `enginebay`, which promises no stability to it.
    """

    name: str
    """How the config and `enginebay plugins` name it."""

    settings: type[Any] | None = None
    """The class of its section of the config, which has the wing's name."""

    moved: Mapping[str, str] = {}
    """Dotted keys of the config that had this section's keys before, such as `server.port`."""

    is_api = False
    """Whether `server.apis` can leave it out."""

    greeting: str | None = None
    """The text that clients of its API expect at `/`, if they are no browsers."""

    def routers(self, kernel: Any) -> Iterable[Any]:
        """Return its routers, with their whole prefixes. Everything guards and counts them."""
        return ()

    def error_forms(self) -> Mapping[str, ErrorForm]:
        """Return the forms of errors by the prefixes of its paths, which begin with a slash."""
        return {}

    def service_info(self) -> Mapping[str, Mapping[str, str]]:
        """Return what `/.well-known/serviceinfo` says of its API, by the API's name."""
        return {}

    def port(self, config: Any) -> int | None:
        """Return a second port to listen on, or None."""
        return None

    @asynccontextmanager
    async def running(self, kernel: Any) -> AsyncGenerator[None, None]:
        """Run the wing while the server runs. It ends after all requests have ended."""
        yield

    def replace(self, parts: Any, config: Any) -> Any:
        """Return the server's parts (`enginebay.kernel.Parts`), some replaced by the wing's."""
        return parts

    def commands(self) -> Any:
        """Return its commands, a typer application that gets the wing's name, or None."""
        return None
