"""Limits of tokens, by clocks that the test moves. KEY-2"""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.chat.answer.account import Used
from enginebay.config.keys import Key
from enginebay.contract.errors import TokenLimitError
from enginebay.server.usage.key_use import KeyUse, KeyUses
from enginebay.server.usage.token_window import TokenWindow
from enginebay.server.usage.usage_records import UsageRecords

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


class Clock:
    """Seconds, and the time of day they stand for."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now

    def time(self) -> datetime:
        return NOON + timedelta(seconds=self.now - 1000)


def uses_of(clock: Clock, path: Path | None = None) -> KeyUses:
    return KeyUses(UsageRecords(path, now=clock.time), clock)


def use(account: KeyUse, prompt: int, completion: int = 0) -> None:
    account.of("m").add(Used(1, prompt, 0, completion))


def refused(account: KeyUse, key: Key) -> int | None:
    """After how many seconds to try again, if a request is refused."""
    try:
        account.require_tokens(key)
    except TokenLimitError as error:
        return error.retry_after
    return None


def test_a_minute() -> None:
    clock, key = Clock(), Key("anna", b"", tokens_per_minute=100)
    anna = uses_of(clock).of(key)
    assert anna.headers(key) == {
        "x-ratelimit-limit-tokens": "100",
        "x-ratelimit-remaining-tokens": "100",
        "x-ratelimit-reset-tokens": "0s",
    }
    use(anna, 60)
    assert refused(anna, key) is None
    clock.now += 10
    use(anna, 30, 9)
    assert refused(anna, key) is None, "99 of 100"
    assert anna.headers(key)["x-ratelimit-remaining-tokens"] == "1"
    clock.now += 20.5
    use(anna, 0, 1)  # of an answer that is running
    with pytest.raises(TokenLimitError) as caught:
        anna.require_tokens(key)
    assert caught.value.message == (
        "the API key of anna is limited to 100 tokens per minute, which are used; try again in 30s"
    )
    assert (caught.value.retry_after, caught.value.type) == (30, "tokens")
    assert anna.headers(key) == {
        "x-ratelimit-limit-tokens": "100",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "1m0s",
    }
    clock.now += 29.5
    assert refused(anna, key) is None, "the first 60 are a minute old"
    assert anna.headers(key)["x-ratelimit-remaining-tokens"] == "60"
    clock.now += 30.5
    assert anna.headers(key)["x-ratelimit-remaining-tokens"] == "100"


@given(
    st.integers(1, 50),
    st.lists(st.tuples(st.integers(0, 200).map(lambda n: n / 4), st.integers(0, 30)), max_size=40),
)
def test_no_minute_begins_with_more(limit: int, requests: list[tuple[float, int]]) -> None:
    """A request is answered only if the 60 seconds before have less than the limit, and once it
    is refused, exactly after the seconds that it was told.
    """
    clock, key = Clock(), Key("anna", b"", tokens_per_minute=limit)
    anna = uses_of(clock).of(key)
    used: list[tuple[float, int]] = []
    for wait, tokens in requests:
        clock.now += wait
        if seconds := refused(anna, key):
            clock.now += seconds - 1
            assert refused(anna, key) == 1
            clock.now += 1
            assert refused(anna, key) is None
        assert sum(n for at, n in used if at > clock.now - 60) < limit
        used.append((clock.now, tokens))
        use(anna, tokens)


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 20)), max_size=200))
def test_a_window_is_small_and_never_says_too_little(steps: list[tuple[float, int]]) -> None:
    window, now, count = TokenWindow(), 0.0, 0
    counts: list[tuple[float, int]] = []
    for wait, tokens in steps:
        now, count = now + wait, count + tokens
        counts.append((now, tokens))
        window.sample(now, count)
        exact = sum(n for at, n in counts if at > now - 60)
        about = sum(n for at, n in counts if at > now - 60.25)
        assert exact <= window.used <= about
        assert len(window._samples) <= 60 * 4 + 2
    for _ in range(2000):
        now += 0.01
        count += 1
        window.sample(now, count)
    assert len(window._samples) <= 60 * 4 + 2


async def test_a_day_is_one_of_utc_and_survives_a_restart(tmp_path: Path) -> None:
    clock, key = Clock(), Key("anna", b"", tokens_per_day=100, tokens_per_minute=10_000)
    uses = uses_of(clock, tmp_path / "usage.db")
    anna = uses.of(key)
    use(anna, 99)
    assert refused(anna, key) is None
    use(anna, 0, 1)
    assert refused(anna, key) == 12 * 3600
    await uses.close()
    clock.now += 3600
    uses = uses_of(clock, tmp_path / "usage.db")
    anna = uses.of(key)
    await uses.records.write()  # as the server does before it listens
    assert refused(anna, key) == 11 * 3600
    assert anna.headers(key) == {
        "x-ratelimit-limit-tokens": "100",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "11h0m0s",
    }
    clock.now += 11 * 3600 - 1
    assert refused(anna, key) == 1
    clock.now += 1
    assert refused(anna, key) is None
    use(anna, 5)
    assert anna.limits(key)["tokens_per_day"].used == 5
    await uses.close()


def test_the_longer_wait_counts() -> None:
    clock, key = Clock(), Key("anna", b"", tokens_per_day=10, tokens_per_minute=5)
    anna = uses_of(clock).of(key)
    use(anna, 7)
    assert refused(anna, key) == 60
    use(anna, 7)
    assert refused(anna, key) == 12 * 3600
    with pytest.raises(TokenLimitError, match=r"10 tokens per day \(UTC\).* again in 12h0m0s"):
        anna.require_tokens(key)
    assert anna.headers(key)["x-ratelimit-limit-tokens"] == "10"


def test_a_limit_that_is_set_meanwhile_knows_what_was_used_before() -> None:
    clock, uses = Clock(), None
    uses = uses_of(clock)
    anna = uses.of(Key("anna", b""))
    use(anna, 50)
    uses.record()  # as the server does twice a second
    clock.now += 30
    key = Key("anna", b"", tokens_per_minute=50, tokens_per_day=1000)
    assert uses.of(key) is anna
    assert refused(anna, key) == 30
    assert refused(uses.of(Key("bob", b"")), Key("bob", b"", tokens_per_day=1)) is None
