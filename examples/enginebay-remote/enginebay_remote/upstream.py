"""One of several servers: what is known of it, and what runs there."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from zlib import crc32

from enginebay import ServingError
from enginebay_remote.facts import Facts
from enginebay_remote.http import Http

FIRST_DELAY, LONGEST_DELAY = 0.5, 10.0


class Upstream:
    """A server of a pool.

    `key`: the same in every process. `drains`: it gets no new requests, by the config. `facts`: of
    its model, once they have been found out. `trouble`: why it gets no requests; None if it may.
    `doubt`: why a request failed there since it was last looked at. `loading`: it loads its model;
    `asleep`: it will when it is asked for. `failures`: how often in a row it failed. `running`:
    choices of requests that run there. `heard`: how many events came from it. `logged`: what the
    log says of it.
    """

    def __init__(self, url: str, http: Http, *, weight: float = 1, drains: bool = False) -> None:
        self.url = url
        self.http = http
        self.drains = drains
        self.key = crc32(url.encode())
        self.facts: Facts | None = None
        self.trouble: str | None = None
        self.doubt: str | None = None
        self.loading = False
        self.asleep = False
        self.failures = 0
        self.running = 0
        self.heard = 0
        self.logged = ""
        self._weight = weight
        self._waits = set[asyncio.Timeout]()

    @property
    def usable(self) -> bool:
        """Whether it may get requests."""
        return not self.drains and self.facts is not None and self.trouble is None

    @property
    def reason(self) -> str:
        """Why it is not usable."""
        if self.drains:
            return "it is drained by the config"
        return self.trouble or "it has not been looked at yet"

    @property
    def reluctance(self) -> int:
        """0 for one that is well; those with more get requests only if there is no such."""
        return 2 if self.doubt else int(self.asleep)

    def reason_of(self, error: ServingError) -> str:
        """What an error of it says, without its name."""
        return error.message.removeprefix(f"{self.http.name}: ")

    @property
    def load(self) -> int:
        """A hundred times its running choices, less for one with more weight."""
        return round(100 * self.running / self._weight)

    @property
    def delay(self) -> float:
        """Seconds until one that failed is looked at again."""
        return float(min(FIRST_DELAY * 2.0 ** min(max(self.failures, 1) - 1, 30), LONGEST_DELAY))

    @contextmanager
    def answering(self, choices: int) -> Iterator[None]:
        """While a request runs there."""
        self.running += choices
        try:
            yield
        finally:
            self.running -= choices

    @contextmanager
    def waiting(self) -> Iterator[asyncio.Timeout]:
        """The wait for its next event, which `give_up` ends; to be entered as a timeout."""
        limit = asyncio.timeout(None)
        self._waits.add(limit)
        try:
            yield limit
        finally:
            self._waits.remove(limit)

    def hear(self) -> None:
        """An event came."""
        self.heard += 1
        self.failures = 0

    def give_up(self) -> None:
        """End all waits for its events with a `TimeoutError`."""
        now = asyncio.get_running_loop().time()
        for limit in self._waits:
            limit.reschedule(now)
