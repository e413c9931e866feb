"""How much a key may ask for, by a clock that the test moves."""

from collections import deque
from contextlib import AsyncExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.config.keys import Key
from enginebay.contract.errors import RateLimitError
from enginebay.server.usage.key_use import KeyUse, KeyUses
from enginebay.server.usage.token_window import WINDOW
from enginebay.server.usage.usage_records import UsageRecords


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def use_by(clock: Clock) -> KeyUse:
    return KeyUse("a", UsageRecords(None), clock)


async def ask(use: KeyUse, key: Key) -> None:
    async with use.counted(key):
        pass


async def refused(use: KeyUse, key: Key) -> int | None:
    """Ask, and return after how many seconds to try again if that was refused."""
    try:
        await ask(use, key)
    except RateLimitError as error:
        return error.retry_after
    return None


async def test_requests_per_minute() -> None:
    clock, key = Clock(), Key("a", b"", requests_per_minute=2)
    use = use_by(clock)
    await ask(use, key)
    clock.now += 10
    assert use.headers(key)["x-ratelimit-remaining-requests"] == "1"
    await ask(use, key)
    clock.now += 10.5
    with pytest.raises(RateLimitError, match="limited to 2 per minute; try again in 40") as caught:
        await ask(use, key)
    assert caught.value.retry_after == 40
    assert use.headers(key) == {
        "x-ratelimit-limit-requests": "2",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "49.500s",
    }
    clock.now += 40
    await ask(use, key)
    with pytest.raises(RateLimitError):
        await ask(use, key)
    clock.now += WINDOW
    assert use.headers(key)["x-ratelimit-remaining-requests"] == "2"
    assert use.headers(key)["x-ratelimit-reset-requests"] == "0s"


@given(st.integers(1, 4), st.lists(st.integers(0, 90), max_size=30))
async def test_no_minute_has_more_and_retry_after_is_exact(limit: int, waits: list[int]) -> None:
    clock, key = Clock(), Key("a", b"", requests_per_minute=limit)
    use = use_by(clock)
    answered: deque[float] = deque()
    for wait in waits:
        clock.now += wait
        if seconds := await refused(use, key):
            clock.now += seconds - 1
            assert await refused(use, key) == 1
            clock.now += 1
            assert await refused(use, key) is None
        answered.append(clock.now)
        assert sum(at > clock.now - WINDOW for at in answered) <= limit


async def test_concurrent_requests() -> None:
    key = Key("a", b"", concurrent_requests=2, requests_per_minute=5)
    use = use_by(Clock())
    async with AsyncExitStack() as running:
        await running.enter_async_context(use.counted(key))
        await running.enter_async_context(use.counted(key))
        with pytest.raises(RateLimitError, match="limited to 2 at once"):
            await ask(use, key)
        assert use.running == 2
        assert use.headers(key)["x-ratelimit-remaining-requests"] == "3", "refused ones are free"
    assert use.running == 0
    await ask(use, key)


async def test_requests_for_tokens_have_counts_of_their_own() -> None:
    """SEC-9: ten times as many a minute as other requests, and as many at once."""
    clock, key = Clock(), Key("a", b"", requests_per_minute=2, concurrent_requests=3)
    use = use_by(clock)
    for _ in range(20):
        async with use.counted_small(key):
            pass
    with pytest.raises(RateLimitError, match="requests for tokens with the API key of a are limi"):
        async with use.counted_small(key):
            pass
    await ask(use, key)
    assert use.headers(key)["x-ratelimit-remaining-requests"] == "1"
    clock.now += WINDOW
    async with AsyncExitStack() as running:
        for _ in range(3):
            await running.enter_async_context(use.counted_small(key))
        with pytest.raises(RateLimitError, match="limited to 3 at once"):
            await running.enter_async_context(use.counted_small(key))
        await ask(use, key)
    async with use.counted_small(Key("a", b"")):
        pass


async def test_a_limit_that_changes_meanwhile() -> None:
    clock = Clock()
    use = KeyUses(UsageRecords(None), clock).of(Key("a", b""))
    for _ in range(3):
        await ask(use, Key("a", b"", requests_per_minute=5))
        clock.now += 1
    with pytest.raises(RateLimitError) as caught:
        await ask(use, Key("a", b"", requests_per_minute=1))
    assert caught.value.retry_after == 59, "when the last of the three is a minute old"


async def test_keys_have_a_use_each() -> None:
    uses, key, other = (
        KeyUses(UsageRecords(None), Clock()),
        Key("a", b"", requests_per_minute=1),
        Key("b", b""),
    )
    await ask(uses.of(key), key)
    await ask(uses.of(other), other)
    with pytest.raises(RateLimitError):
        await ask(uses.of(key), key)
    assert uses.of(other).headers(other) == {}
