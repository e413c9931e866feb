"""What each key uses, and its limits: of requests, at once and a minute, and of tokens."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

from enginebay.chat.answer.account import Account, Used
from enginebay.config.keys import Key
from enginebay.contract.errors import TokenLimitError
from enginebay.server.usage.limit_use import LimitUse, duration
from enginebay.server.usage.records import Records
from enginebay.server.usage.request_count import RequestCount, RequestsSeen
from enginebay.server.usage.token_window import TokenWindow

_WRITE_EVERY = 0.5
"""Seconds between two writes of what was used: half of what may be lost with the server."""

_SMALL = 10
"""Requests for tokens that count as much as one request for an answer."""

_NOTHING = Used()


class KeyUse(Account):
    """What one key uses: its requests, recent and running, and tokens.

    Requests are counted by a `RequestCount`. Days are those of UTC. Tokens count as they are used,
    and a request that finds a limit of tokens reached is refused: it is exceeded by what was
    running at that moment only.
    """

    def __init__(self, name: str, records: Records, clock: Callable[[], float]) -> None:
        super().__init__()
        self._name = name
        self._records = records
        self._clock = clock
        self._requests = RequestCount(clock)
        self._small = RequestCount(clock, "requests for tokens")
        self._recorded: dict[str, Used] = {}
        self._window = TokenWindow()

    @property
    def running(self) -> int:
        """Requests that are counted now."""
        return self._requests.running

    @asynccontextmanager
    async def counted(self, key: Key) -> AsyncIterator[None]:
        """Count a request for as long as the block runs. Raises `RateLimitError`."""
        self._requests.begin(key)
        try:
            yield
        finally:
            self._requests.end()

    @asynccontextmanager
    async def counted_small(self, key: Key) -> AsyncIterator[None]:
        """Count a request that a frontend sends for every message, apart from all others.

        Of these a key has ten times as many a minute as of others, and as many at once. Each server
        counts its own. Raises `RateLimitError`.
        """
        a_minute = key.requests_per_minute
        self._small.begin(replace(key, requests_per_minute=a_minute and _SMALL * a_minute))
        try:
            yield
        finally:
            self._small.end()

    @property
    def seen(self) -> RequestsSeen:
        """Its requests, as they count for its limits."""
        return self._requests.seen

    def require_tokens(self, key: Key) -> None:
        """Raise `TokenLimitError` if this key has reached a limit of tokens."""
        a_minute, a_day = key.tokens_per_minute, key.tokens_per_day
        if a_minute is None and a_day is None:
            return
        self.record()
        reached = []
        if a_minute is not None and self._window.used >= a_minute:
            reached.append((self._window.below(a_minute) - self._clock(), a_minute, "minute"))
        if a_day is not None and self._records.tokens_today(self._name) >= a_day:
            reached.append((self._rest_of_the_day(), a_day, "day (UTC)"))
        if reached:
            seconds, limit, time = max(reached)
            wait = max(1, math.ceil(seconds))
            raise TokenLimitError(
                f"the API key of {key.name} is limited to {limit} tokens per {time}, which are "
                f"used; try again in {duration(wait)}",
                retry_after=wait,
            )

    def record(self) -> None:
        """Hand on what was used since this was called last."""
        for model, used in self.used.items():
            before = self._recorded.get(model, _NOTHING)
            if used != before:
                self._records.add(self._name, model, used.since(before))
                self._recorded[model] = replace(used)
        tokens = sum(used.tokens for used in self.used.values())
        self._window.sample(self._clock(), tokens + self._records.used_elsewhere(self._name))

    def limits(self, key: Key) -> dict[str, LimitUse]:
        """Those that this key has, by their names in the keys file."""
        self.record()
        limits = self.seen.limits(key)
        if key.tokens_per_minute is not None:
            empty = max(0.0, self._window.below(1) - self._clock())
            limits["tokens_per_minute"] = LimitUse(key.tokens_per_minute, self._window.used, empty)
        if key.tokens_per_day is not None:
            used = self._records.tokens_today(self._name)
            limits["tokens_per_day"] = LimitUse(key.tokens_per_day, used, self._rest_of_the_day())
        return limits

    def headers(self, key: Key) -> dict[str, str]:
        """OpenAI's headers about the limits of requests and of tokens; none without them.

        Of two limits of tokens they are about the one of which less remains.
        https://platform.openai.com/docs/guides/rate-limits#rate-limits-in-headers
        """
        limits = self.limits(key)
        named = ("tokens_per_minute", "tokens_per_day")
        of_tokens = [limits[name] for name in named if name in limits]
        shown = {
            "requests": limits.get("requests_per_minute"),
            "tokens": min(of_tokens, key=_tightness, default=None),
        }
        headers = {}
        for what, limit in shown.items():
            if limit:
                headers[f"x-ratelimit-limit-{what}"] = str(limit.limit)
                headers[f"x-ratelimit-remaining-{what}"] = str(limit.remaining)
                headers[f"x-ratelimit-reset-{what}"] = duration(limit.reset_s or 0)
        return headers

    def _rest_of_the_day(self) -> float:
        now = self._records.now()
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
        return (midnight - now).total_seconds()


class KeyUses:
    """The use of every key, by its name, so that it outlives changes of the keys file."""

    def __init__(self, records: Records, clock: Callable[[], float] = time.monotonic) -> None:
        self.records = records
        self._clock = clock
        self._uses: dict[str, KeyUse] = {}

    def __iter__(self) -> Iterator[tuple[str, Account]]:
        """The names of keys that have used something since the server started; '' is none."""
        return iter(list(self._uses.items()))

    def of(self, key: Key | None) -> KeyUse:
        """What this key uses, or what is used without one."""
        name = key.name if key else ""
        if name not in self._uses:
            self._uses[name] = self._make(name)
        return self._uses[name]

    def _make(self, name: str) -> KeyUse:
        return KeyUse(name, self.records, self._clock)

    def record(self) -> None:
        """Hand on what all of them have used."""
        for use in self._uses.values():
            use.record()

    async def run(self) -> None:
        """Record and write it twice a second, until cancelled."""
        while True:
            self.record()
            await self.records.write()
            await asyncio.sleep(_WRITE_EVERY)

    async def close(self) -> None:
        """Write the rest."""
        self.record()
        await self.records.close()


def _tightness(limit: LimitUse) -> tuple[int, float]:
    """Less for a limit of which less remains, or for longer."""
    return limit.remaining, -(limit.reset_s or 0)
