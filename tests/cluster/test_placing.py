"""Where requests are placed, without a cluster."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay import block_hashes
from enginebay_cluster.contract import ClusterError, SharedObject
from enginebay_cluster.ray.placing import Placements, Placer

REPLICAS = ("a", "b", "c")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Shared(SharedObject):
    """Placements of all servers; while `lost`, they cannot be reached."""

    def __init__(self) -> None:
        self.placements = Placements()
        self.lost = False

    async def call(self, method: str, *args: Any) -> Any:
        if self.lost:
            raise ClusterError("the cluster is away")
        return await getattr(self.placements, method)(*args)


@given(st.lists(st.tuples(st.sampled_from("xy"), st.integers(1, 3), st.booleans()), max_size=30))
def test_what_runs_is_counted_until_it_ends(steps: list[tuple[str, int, bool]]) -> None:
    async def run() -> None:
        placements = Placements()
        loads = dict.fromkeys(REPLICAS, 0)
        for ticket, (server, choices, ends) in enumerate(steps):
            chosen = await placements.place(
                server, ticket, "m", [], choices, REPLICAS, cached_tokens=None
            )
            assert loads[chosen] == min(loads.values())
            if ends:
                await placements.end(server, ticket)
                await placements.end(server, ticket)
            else:
                loads[chosen] += choices

    asyncio.run(run())


async def test_what_a_silent_server_placed_counts_no_more() -> None:
    clock = Clock()
    placements = Placements(clock)

    async def place(server: str, ticket: int) -> str:
        return await placements.place(server, ticket, "m", [], 1, ("a", "b"), None)

    held = [await place("gone", ticket) for ticket in range(3)]
    assert held.count("a") != held.count("b")
    clock.now = 9
    await placements.beat("there")
    clock.now = 11
    assert {await place("there", 0), await place("there", 1)} == {"a", "b"}


async def test_a_prompt_goes_where_its_beginning_was() -> None:
    placer = Placer()
    hashes = block_hashes(range(1000), 32)
    async with placer.placed("m", hashes, 1, REPLICAS, None) as first:
        pass
    async with placer.placed("m", block_hashes(range(1100), 32), 1, REPLICAS, None) as again:
        assert again == first
    placer.forget("m", first)
    await asyncio.sleep(0)
    async with placer.placed("other", hashes, 1, REPLICAS, None):
        pass


async def test_servers_that_share_placements_know_each_others() -> None:
    shared = Shared()
    one, other = Placer(shared), Placer(shared)
    hashes = block_hashes(range(1000), 32)
    async with one.placed("m", hashes, 1, REPLICAS, None) as first:
        pass
    async with other.placed("m", hashes, 1, REPLICAS, None) as second:
        assert second == first
    one.close()
    other.close()


async def test_without_shared_placements_a_server_places_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shared = Shared()
    placer = Placer(shared)
    shared.lost = True
    async with placer.placed("m", [], 1, ("a",), None) as chosen:
        assert chosen == "a"
    assert "placed by this server alone" in caplog.text
    placer.close()


async def test_shared_placements_that_do_not_answer_are_not_waited_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Frozen(SharedObject):
        async def call(self, method: str, *args: Any) -> Any:
            await asyncio.Event().wait()

    placer = Placer(Frozen(), patience=0)
    async with placer.placed("m", [], 1, ("a",), None) as chosen:
        assert chosen == "a"
    assert "placed by this server alone" in caplog.text
    placer.close()


async def test_a_request_that_fails_counts_no_more() -> None:
    shared = Shared()
    placer = Placer(shared)
    with pytest.raises(RuntimeError):
        async with placer.placed("m", [], 5, ("a", "b"), None) as chosen:
            raise RuntimeError
    await asyncio.sleep(0)
    async with placer.placed("m", [], 1, ("a", "b"), None) as again:
        assert again == chosen
    placer.close()
