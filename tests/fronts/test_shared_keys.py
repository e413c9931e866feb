"""Limits of keys over several fronts, and what is told of them. SCALE-10"""

from contextlib import AsyncExitStack
from datetime import date
from pathlib import Path

import pytest

from enginebay.chat.answer.account import Used
from enginebay.config.keys import Key
from enginebay.contract.errors import RateLimitError, ServingError, TokenLimitError
from enginebay.server.usage.usage_file import Slot, read_usage
from enginebay_cluster.contract import ClusterError
from tests.fronts.site import FrontAt, quiet, site

TODAY = date(2026, 1, 31)


async def asks(front: FrontAt, key: Key) -> str | None:
    """A request that ends at once; the code of the error if it is refused."""
    try:
        async with front.uses.of(key).counted(key):
            pass
    except ServingError as error:
        return error.code
    return None


async def asks_alone(front: FrontAt, key: Key) -> str | None:
    """The same, and its end is known to the ledger."""
    code = await asks(front, key)
    await quiet()
    return code


def use(front: FrontAt, key: Key, tokens: int) -> None:
    front.uses.of(key).of("m").add(Used(1, tokens, 0, 0))


def refused(front: FrontAt, key: Key) -> int | None:
    try:
        front.uses.of(key).require_tokens(key)
    except TokenLimitError as error:
        return error.retry_after
    return None


async def told(*fronts: FrontAt) -> None:
    """Each front hands on what it has, and hears what there is."""
    for _ in range(2):
        for front in fronts:
            front.uses.record()
            await front.records.write()


async def test_requests_per_minute_hold_exactly() -> None:
    # SCALE-10
    async with site() as at:
        one, two = await at.front("one"), await at.front("two")
        key = Key("ann", b"digest", requests_per_minute=5)
        outcomes = [await asks_alone(front, key) for front in (one, two) * 6]
        assert outcomes == [None] * 5 + ["rate_limit_exceeded"] * 7
        with pytest.raises(RateLimitError, match="limited to 5 per minute; try again in 60 s"):
            await one.uses.of(key).counted(key).__aenter__()
        for front in (one, two):
            headers = front.uses.of(key).headers(key)
            assert headers["x-ratelimit-remaining-requests"] == "0"
            assert headers["x-ratelimit-reset-requests"] == "1m0s"
        await at.passes(61)
        assert two.uses.of(key).headers(key)["x-ratelimit-remaining-requests"] == "5"
        assert await asks(two, key) is None


async def test_concurrent_requests_hold_exactly() -> None:
    # SCALE-10
    async with site() as at:
        one, two = await at.front("one"), await at.front("two")
        key = Key("ann", b"", concurrent_requests=2)
        async with AsyncExitStack() as running:
            await running.enter_async_context(one.uses.of(key).counted(key))
            await running.enter_async_context(two.uses.of(key).counted(key))
            assert [await asks(front, key) for front in (one, two)] == ["rate_limit_exceeded"] * 2
        await quiet()
        assert [await asks_alone(front, key) for front in (one, two)] == [None, None]


async def test_a_key_without_limits_of_requests_needs_no_ledger() -> None:
    async with site() as at:
        front = await at.front()
        at.cluster.down = True
        assert await asks(front, Key("ann", b"", tokens_per_day=5)) is None
        front.uses.of(Key("ann", b"")).require_tokens(Key("ann", b"", tokens_per_day=5))


async def test_the_hash_of_a_key_stays_where_it_is() -> None:
    async with site() as at:
        front = await at.front()
        seen: list[Key] = []
        enter = at.ledger.enter

        async def looked_at(front: str, ticket: int, key: Key) -> object:
            seen.append(key)
            return await enter(front, ticket, key)

        at.ledger.enter = looked_at  # type: ignore[method-assign,assignment]
        await asks(front, Key("ann", b"digest", concurrent_requests=1))
        assert seen[0].digest == b""


async def test_running_requests_count_at_the_next_ledger() -> None:
    # SCALE-10
    async with site() as at:
        one, two = await at.front("one"), await at.front("two")
        key = Key("ann", b"", concurrent_requests=2)
        running = AsyncExitStack()
        await running.enter_async_context(one.uses.of(key).counted(key))
        await running.enter_async_context(two.uses.of(key).counted(key))
        await at.lose_ledger()
        assert await asks(one, key) == "rate_limit_exceeded"
        await running.aclose()
        await quiet()
        assert await asks(one, key) is None


async def test_a_dead_front_counts_no_more() -> None:
    # SCALE-12
    async with site() as at:
        dead, other = await at.front("dead"), await at.front("other")
        key = Key("ann", b"", concurrent_requests=1)
        running = AsyncExitStack()
        await running.enter_async_context(dead.uses.of(key).counted(key))
        dead.die()
        await at.passes(9)
        assert await asks(other, key) == "rate_limit_exceeded"
        await at.passes(6)
        assert await asks(other, key) is None
        await running.aclose()


async def test_without_a_ledger_a_counted_request_is_refused_in_the_end() -> None:
    async with site() as at:
        front = await at.front()
        at.cluster.down = True
        await at.passes(8)
        key = Key("ann", b"", requests_per_minute=1)
        assert await asks(front, key) == "cluster_unavailable"
        at.cluster.down = False
        await at.passes(1)
        assert await asks(front, key) is None
        assert await asks(front, key) == "rate_limit_exceeded"


async def test_a_request_whose_answer_was_lost_counts_once() -> None:
    async with site() as at:
        front = await at.front()
        lost: list[str] = []

        async def lose(front: str, method: str) -> None:
            if method == "enter" and not lost:
                lost.append(method)
                raise ClusterError("the answer was lost")

        at.cluster.after = lose
        key = Key("ann", b"", requests_per_minute=2)
        use = front.uses.of(key)
        asking = front.front.ledger.spawn(asks(front, key))
        await at.passes(1)
        assert asking.result() is None
        assert use.headers(key)["x-ratelimit-remaining-requests"] == "1"


async def test_tokens_of_a_minute_are_those_of_all_fronts() -> None:
    async with site() as at:
        one, two = await at.front("one"), await at.front("two")
        key = Key("ann", b"", tokens_per_minute=100)
        use(one, key, 60)
        use(two, key, 30)
        assert (refused(one, key), refused(two, key)) == (None, None)
        await told(one, two)
        assert two.uses.of(key).headers(key)["x-ratelimit-remaining-tokens"] == "10"
        use(two, key, 10)
        assert refused(two, key) == 60
        assert refused(one, key) is None, "it has not heard of the last 10"
        await told(one, two)
        assert refused(one, key)
        late = await at.front("late")
        await told(late)
        assert refused(late, key), "a front that starts knows what was used before"
        await at.passes(61)
        await told(one, two, late)
        assert [refused(front, key) for front in (one, two, late)] == [None] * 3
        newest = await at.front("newest")
        await told(newest)
        assert refused(newest, key) is None, "what is older than a minute does not count"


async def test_tokens_of_a_day_are_those_of_all_fronts_and_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "usage.db"
    key = Key("ann", b"", tokens_per_day=100)
    async with site(usage=path) as at:
        one, two = await at.front("one"), await at.front("two")
        use(one, key, 60)
        use(two, key, 30)
        await told(one, two)
        assert one.uses.of(key).headers(key)["x-ratelimit-remaining-tokens"] == "10"
        await at.lose_ledger()
        use(two, key, 10)
        await told(two, one)
        assert (refused(one, key) or 0) > 11 * 3600
    async with site(usage=path) as at:
        new = await at.front()
        await told(new)
        assert refused(new, key), "also after everything was started anew"
        assert new.uses.of(key).headers(key)["x-ratelimit-remaining-tokens"] == "0"


async def test_usage_is_handed_on_later_and_once(tmp_path: Path) -> None:
    path, key = tmp_path / "usage.db", Key("ann", b"")
    async with site(usage=path) as at:
        one, two = await at.front("one"), await at.front("two")
        use(one, key, 5)
        at.cluster.down = True
        await told(one)
        use(one, key, 6)
        await told(one)
        asking = one.front.ledger.spawn(one.records.usage(TODAY, None))
        await at.passes(6)
        with pytest.raises(ClusterError):
            await asking
        at.cluster.down = False
        await at.passes(1)
        await told(one)
        slot = Slot("2026-01-31", "ann", "m")
        assert await two.records.usage(TODAY, "ann") == {slot: Used(2, 11, 0, 0)}
        assert await two.records.usage(TODAY, "bob") == {}
        lost: list[str] = []

        async def lose(front: str, method: str) -> None:
            if method == "hand_over" and not lost:
                lost.append(method)
                at.cluster.lose()
                raise ClusterError("the ledger wrote it, and died")

        at.cluster.after = lose
        use(one, key, 7)
        await told(one)
        use(one, key, 1)
        await at.passes(1)
        await told(one)
        assert await two.records.usage(TODAY, "ann") == {slot: Used(4, 19, 0, 0)}
    assert read_usage(path, "2026-01-01", None) == {slot: Used(4, 19, 0, 0)}


async def test_what_a_front_that_ends_has_used_is_kept() -> None:
    async with site() as at:
        one, two, key = await at.front("one"), await at.front("two"), Key("ann", b"")
        use(one, key, 5)
        await one.uses.close()
        await one.end()
        [used] = (await two.records.usage(TODAY, None)).values()
        assert used.prompt_tokens == 5


async def test_trouble_with_the_file_is_known_at_every_front(tmp_path: Path) -> None:
    async with site(usage=tmp_path) as at:  # which is a folder
        one, two = await at.front("one"), await at.front("two")
        use(one, Key("ann", b""), 5)
        await told(one, two)
        assert two.records.trouble
        [used] = (await two.records.usage(TODAY, None)).values()
        assert used.prompt_tokens == 5


async def test_tokens_that_others_use_after_a_ledger_was_lost_count() -> None:
    async with site() as at:
        one, two = await at.front("one"), await at.front("two")
        key = Key("ann", b"", tokens_per_minute=100)
        use(two, key, 60)
        await told(two, one)
        await at.lose_ledger()
        use(two, key, 40)
        await told(two, one)
        assert refused(one, key), "60 that it was told before, and 40"
