"""The servers that a model's config names, to be used as if there were one."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from typing import Any, Protocol

from enginebay import BackendSettings, BackendUnavailableError, GenerationRequest
from enginebay_remote.facts import Facts, Probe
from enginebay_remote.health import LOOK, Sleep
from enginebay_remote.http import QUICK, Http
from enginebay_remote.options import Options, ServerOptions, is_url, same_address
from enginebay_remote.pool import Affinity, Pool
from enginebay_remote.servers import Wanted, find_card
from enginebay_remote.upstream import Upstream

logger = logging.getLogger(__name__)


class Servers(Protocol):
    """What a backend needs of the server that has its model, or of all that have it."""

    @property
    def unavailable(self) -> str | None:
        """Why nobody can answer for now; None if somebody can."""

    @property
    def slots(self) -> int | None:
        """How many choices they compute at once; None if that is left to them."""

    async def start(self, probe: Probe) -> Facts:
        """The facts of the model, as the `probe` finds them out.

        `BackendUnavailableError` if nobody can answer.
        """

    async def post(self, path: str, body: Any) -> Any:
        """The JSON that answers `body`."""

    def events(
        self,
        path: str,
        body: Any,
        request: GenerationRequest,
        *,
        says: Callable[[dict[str, Any]], bool] = bool,
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The events that answer `body`, which is made of `request`; closing it ends the answer.

        Until one `says` something, the request may be tried again.
        """

    async def close(self) -> None:
        """Close all connections, those in use, too."""


class OneServer:
    """A single server, which is waited for where several would be asked in turn."""

    def __init__(self, http: Http, wanted: Wanted) -> None:
        self._http = http
        self._wanted = wanted
        self.slots = None

    @property
    def unavailable(self) -> str | None:
        """Why it cannot be reached; None if it can, or never could."""
        return self._http.away

    async def start(self, probe: Probe) -> Facts:
        """The facts of its model."""
        facts = await probe(self._http, await find_card(self._http, self._wanted))
        logger.info("%s is served by %s at %s", facts.model, facts.server, self._http.root)
        return facts

    async def post(self, path: str, body: Any) -> Any:
        """The JSON that answers `body`."""
        return await self._http.post(path, body)

    def events(
        self,
        path: str,
        body: Any,
        request: GenerationRequest,
        *,
        says: Callable[[dict[str, Any]], bool] = bool,
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The events that answer `body`."""
        headers = {"X-Request-Id": request.request_id}
        return self._http.events(path, body, headers, says=says)

    async def close(self) -> None:
        """Close all connections, those in use, too."""
        await self._http.close()


def connect(
    settings: BackendSettings, sleep: Sleep = asyncio.sleep, affinity: Affinity | None = None
) -> Servers:
    """Clients of the server at `settings.path`, and of those that the options name beside it.

    `sleep`: waits some seconds until the next look at one of several. `affinity`: what is known of
    their caches.
    """
    options: Options = settings.options or Options()
    if not is_url(settings.path):
        raise BackendUnavailableError(
            f"`path` of a remote model is the server's URL, http://host:8000/v1 say, not "
            f"{settings.path!r}"
        )
    named = {same_address(each.url): each for each in options.servers}
    address = same_address(settings.path)
    names = settings.names or (settings.name,)
    wanted = Wanted(model=options.model, names=names, aliases=settings.aliases)
    here = named.pop(address, ServerOptions(url=settings.path))
    if not named and not here.drain:
        return OneServer(_http(here, options, several=False), wanted)
    return Pool(
        [
            Upstream(
                each.url,
                _http(each, options, several=True),
                weight=each.weight,
                drains=each.drain,
            )
            for each in (here, *named.values())
        ],
        wanted=wanted,
        moves=options.retries,
        report_batch_size=settings.report_batch_size,
        sleep=sleep,
        affinity=affinity,
    )


def _http(server: ServerOptions, options: Options, *, several: bool) -> Http:
    """A client of one server; of `several`, a pool tries others, and watches."""
    return Http(
        server.url,
        key=options.key(server),
        timeout=options.timeout,
        connect_timeout=options.connect_timeout,
        retries=0 if several else options.retries,
        quick=LOOK if several else QUICK,
        watches=not several,
    )
