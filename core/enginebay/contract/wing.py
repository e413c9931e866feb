"""Wings: optional parts of the server that are packages of their own."""

from abc import ABC
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
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

    If a method fails, the log names the wing, and the server continues without what the method
    does. An error of `replace` is raised: without its parts, the limits of keys might not hold.
    """

    name: str
    """How the config and `enginebay plugins` name it."""

    settings: type[Any] | None = None
    """The class of its section of the config, which has the wing's name."""

    moved: Mapping[str, str] = {}
    """Dotted keys that the config had before, and those that they are now."""

    model_settings: type[Any] | None = None
    """The class of a section with the wing's name that models had before."""

    moved_in_models: Mapping[str, str] = {}
    """Dotted keys that models with this section had before, and those that they are now."""

    is_api = False
    """Whether `server.apis` can leave it out."""

    greeting: str | None = None
    """The text that clients of its API expect at `/`, if they are no browsers."""

    hooks: Any = None
    """A module with the specifications of hooks that plugins may implement for it."""

    public: Sequence[str] = ()
    """Its paths that need no key. A slash at the end stands for everything below."""

    def routers(self, kernel: Any) -> Iterable[Any]:
        """Return its routers, with their whole prefixes. The server guards and counts them.

        This includes WebSocket routes, which OpenAPI and `/docs` leave out.
        """
        return ()

    def error_forms(self) -> Mapping[str, ErrorForm]:
        """Return the forms of errors by the prefixes of its paths, which begin with a slash."""
        return {}

    def problems(self, config: Any) -> Iterable[tuple[tuple[str | int, ...], str]]:
        """Return mistakes in the config that its section alone does not show, by their paths."""
        return ()

    def translate_model(self, model: Any, section: Any) -> None:  # noqa: B027  (most need none)
        """Change a `ModelConfig` that has its section of models to one that does without it."""

    def extras(self, config: Any, plugins: Any) -> Iterable[str]:
        """Return the extras of Enginebay that it needs with this config."""
        return ()

    def service_info(self) -> Mapping[str, Mapping[str, str]]:
        """Return what `/.well-known/serviceinfo` says of its API, by the API's name."""
        return {}

    def links(self) -> Mapping[str, str]:
        """Return the paths to open in a browser, by their labels, which `serve` prints."""
        return {}

    @asynccontextmanager
    async def running(self, kernel: Any) -> AsyncGenerator[None, None]:
        """Run the wing while the server runs. It ends after all requests have ended."""
        yield

    def replace(self, parts: Any, config: Any) -> Any:
        """Return the server's parts (`enginebay.kernel.Parts`), some replaced by the wing's."""
        return parts

    def commands(self) -> Any:
        """Return its commands, or None.

        They are a typer application, or a function for a single command. It gets the wing's name.
        """
        return None
