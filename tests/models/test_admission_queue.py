"""The gate of a model: who is let in next, who waits, who is refused."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.contract.errors import BackendUnavailableError, QueueFullError
from enginebay.models.admission_queue import Gate, GateSize, Place, with_headroom

KEYS = st.sampled_from(["ann", "bob", None])


class Clock:
    """Time that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def gate_of(
    max_running: int | None = None,
    max_queue: int = 256,
    *,
    together: int | None = None,
    queue_timeout: float = 0.0,
    clock: Callable[[], float] = time.monotonic,
) -> Gate:
    return Gate(GateSize(max_running, max_queue, together), queue_timeout, clock=clock)


def joined(gate: Gate, *keys: str | None, choices: int = 1, priority: int = 0) -> list[Place]:
    return [gate.join(choices, key=key, priority=priority) for key in keys]


def let_in(places: Iterable[Place]) -> list[int]:
    """Which of them are let in, as the first ones leave one after the other."""
    order = []
    waiting = list(places)
    while waiting:
        admitted = [place for place in waiting if not place.waits]
        assert admitted
        for place in admitted:
            order.append(place.number)
            waiting.remove(place)
        admitted[0].leave()
    return order


async def test_who_need_not_wait_does_not() -> None:
    gate = gate_of(max_running=2)
    first, second, third = joined(gate, None, None, None)
    assert [place.waits for place in (first, second, third)] == [False, False, True]
    assert (gate.running, gate.waiting, third.position, first.position) == (2, 1, 0, None)
    second.leave()
    assert not third.waits
    for place in (first, second, third):
        place.leave()
        place.leave()
    assert (gate.running, gate.waiting) == (0, 0)


async def test_without_a_limit_nobody_waits() -> None:
    gate = gate_of()
    assert not any(place.waits for place in joined(gate, *[None] * 1000))


async def test_choices_count_and_large_requests_are_not_overtaken() -> None:
    gate = gate_of(max_running=4)
    [three] = joined(gate, None, choices=3)
    [ten] = joined(gate, None, choices=10)
    [one] = joined(gate, None)
    assert (gate.running, ten.waits, one.waits) == (13, False, True)
    three.leave()
    assert one.waits
    ten.leave()
    assert not one.waits


async def test_lower_priority_numbers_go_first() -> None:
    gate = gate_of(max_running=1)
    [running] = joined(gate, None)
    [low] = joined(gate, "ann", priority=5)
    [usual] = joined(gate, "ann")
    [urgent] = joined(gate, "bob", priority=-1)
    assert [place.position for place in (low, usual, urgent)] == [2, 1, 0]
    running.leave()
    assert let_in([low, usual, urgent]) == [urgent.number, usual.number, low.number]


async def test_keys_take_turns() -> None:
    gate = gate_of(max_running=1)
    [running] = joined(gate, None)
    many = joined(gate, *["ann"] * 4)
    few = joined(gate, *["bob"] * 2)
    expected = [many[0], few[0], many[1], few[1], many[2], many[3]]
    assert list(gate.order()) == expected
    running.leave()
    assert let_in(many + few) == [place.number for place in expected]


async def test_the_key_with_the_fewest_running_goes_first() -> None:
    gate = gate_of(max_running=4)
    first = joined(gate, "ann", "ann", "bob")
    ann, bob = joined(gate, "ann", "bob")
    first[0].leave()
    assert (ann.waits, bob.waits) == (False, True)  # one each, and ann began to wait before
    first[1].leave()
    assert not bob.waits


async def test_a_full_queue_refuses_the_last_of_the_longest_queue() -> None:
    gate = gate_of(max_running=1, max_queue=3)
    joined(gate, "ann")
    greedy = joined(gate, "ann", "ann", "ann")
    [modest] = joined(gate, "bob")
    assert [place.waits for place in (*greedy, modest)] == [True, True, False, True]
    with pytest.raises(QueueFullError):
        await greedy[2].admitted
    [late] = joined(gate, "ann")
    with pytest.raises(QueueFullError, match="queue of 3"):
        await late.admitted
    assert gate.waiting == 3


async def test_with_no_queue_nobody_waits() -> None:
    gate = gate_of(max_running=1, max_queue=0)
    [running] = joined(gate, None)
    [refused] = joined(gate, None)
    with pytest.raises(QueueFullError):
        await refused.admitted
    running.leave()
    [next_one] = joined(gate, None)
    await next_one.admitted


async def test_retry_after_follows_how_long_requests_took() -> None:
    clock = Clock()
    gate = gate_of(max_running=2, max_queue=8, clock=clock)
    assert gate.retry_after == 2
    ended = joined(gate, None, None)
    clock.now = 10.0
    for place in ended:
        place.leave()
    running = joined(gate, *[None] * 10)
    assert gate.waiting == 8
    assert gate.retry_after == 20  # half of the queue, two at once, ten seconds each
    [refused] = joined(gate, None)
    with pytest.raises(QueueFullError) as caught:
        await refused.admitted
    assert caught.value.retry_after == 23  # it would be one more that waits
    clock.now = 10_000.0
    running[0].leave()
    assert gate.retry_after == 60
    clock.now += 0.001
    for _ in range(100):
        for place in joined(gate, None):
            place.leave()
    assert gate.retry_after >= 1


async def test_a_closed_gate_lets_in_what_has_begun() -> None:
    gate = gate_of(max_running=1)
    [running] = joined(gate, None)
    [waiting] = joined(gate, None)
    more = gate.join(goes_on=True)
    gate.close(BackendUnavailableError("unloaded"))
    with pytest.raises(BackendUnavailableError, match="unloaded"):
        await waiting.admitted
    with pytest.raises(BackendUnavailableError, match="unloaded"):
        gate.join()
    running.leave()
    await more.admitted
    more.leave()


async def test_models_that_share_an_engine_wait_in_one_queue() -> None:
    gate = gate_of(max_running=2)
    first, second = gate.join(2, model="a"), gate.join(model="b")
    more, third = gate.join(model="b", goes_on=True), gate.join(model="c")
    numbers = [(gate.running_of(model), gate.waiting_of(model)) for model in "abcd"]
    assert numbers == [(2, 0), (0, 1), (0, 1), (0, 0)]
    gate.refuse("b", BackendUnavailableError("unloaded"))
    with pytest.raises(BackendUnavailableError, match="unloaded"):
        await second.admitted
    first.leave()
    await asyncio.gather(more.admitted, third.admitted)
    assert [gate.running_of(model) for model in "abcd"] == [0, 1, 1, 0]


async def test_who_is_cancelled_while_waiting_leaves_no_trace() -> None:
    gate = gate_of(max_running=1)
    [running] = joined(gate, None)

    async def wait() -> None:
        place = gate.join()
        try:
            await place.admitted
        finally:
            place.leave()

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    waiting.cancel()
    running.leave()  # before the one who waits knows that it is cancelled
    assert gate.running == 0
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (gate.running, gate.waiting, gate._shares) == (0, 0, {})


def test_headroom() -> None:
    assert [with_headroom(size) for size in (None, 1, 4, 16)] == [None, 2, 5, 20]


@given(
    arrivals=st.lists(st.tuples(KEYS, st.integers(1, 5), st.integers(-1, 1), st.booleans())),
    leaving=st.lists(st.integers(0, 100)),
    max_running=st.integers(1, 6),
    max_queue=st.integers(0, 6),
    together=st.integers(1, 6),
)
async def test_whatever_comes_and_goes(
    arrivals: list[tuple[str | None, int, int, bool]],
    leaving: list[int],
    max_running: int,
    max_queue: int,
    together: int,
) -> None:
    """The limits are kept, no place stays free while somebody waits, and the books add up.

    SEC-10: nobody who runs nothing waits while a slot is free, and one slot is kept for them.
    """
    gate = gate_of(max_running, max_queue, together=together)
    places: list[Place] = []
    seen: set[str | None] = set()

    def check() -> None:
        running = [place for place in places if place.since is not None]
        waiting = [place for place in places if place.waits]
        assert gate.running == sum(place.choices for place in running)
        assert gate.waiting == sum(not place.goes_on for place in waiting) <= max_queue
        keeps = max_running > 1 and seen != {None}
        free = max(1, min(max_running, together) - 1) if keeps else max_running
        holding = {place.key for place in running}
        assert not waiting or gate.running >= free
        assert gate.running >= max_running or all(place.key in holding for place in waiting)
        assert gate.running < max_running + 2 * 5
        assert {id(place) for place in gate.order()} == {id(place) for place in waiting}
        positions = {place.position for place in waiting}
        assert positions == set(range(len(waiting)))

    for key, choices, priority, goes_on in arrivals:
        seen.add(key)
        places.append(gate.join(choices, key=key, priority=priority, goes_on=goes_on))
        check()
        if leaving:
            places[leaving.pop() % len(places)].leave()
            places = [place for place in places if place.since is not None or place.waits]
            check()
    for place in places:
        place.leave()
    assert (gate.running, gate.waiting, gate._shares) == (0, 0, {})


@pytest.mark.parametrize("priority", [0, -1000, 1000])
@pytest.mark.parametrize("choices", [1, 3])
async def test_a_key_that_runs_nothing_does_not_wait(priority: int, choices: int) -> None:
    """SEC-10: one key may not hold all slots, however many requests and whatever it asks for."""
    gate = gate_of(max_running=5, together=4)
    greedy = joined(gate, *["ann"] * 100, choices=choices, priority=priority)
    [bob] = joined(gate, "bob", priority=0)
    assert not bob.waits
    assert sum(place.choices for place in greedy if not place.waits) == 3
    [more] = joined(gate, "bob")
    [cat] = joined(gate, "cat")
    assert (more.waits, cat.waits) == (True, False)  # a choice that waits inside the engine
    [dan] = joined(gate, "dan")
    assert (dan.waits, dan.position) == (True, 0)
    greedy[0].leave()
    assert not dan.waits


async def test_a_request_for_many_choices_takes_no_kept_slot() -> None:
    # SEC-10
    gate = gate_of(max_running=4)
    [many] = joined(gate, "ann", choices=128)
    [more] = joined(gate, "ann")
    [bob] = joined(gate, "bob", choices=128)
    [cat] = joined(gate, "cat")
    assert [place.waits for place in (many, more, bob, cat)] == [False, True, False, True]
    many.leave()
    assert [place.waits for place in (more, cat)] == [True, False]


async def test_the_key_that_holds_most_gives_up_the_next_slot() -> None:
    # SEC-10
    gate = gate_of(max_running=9)
    greedy = joined(gate, *["ann"] * 50)
    bob = joined(gate, *["bob"] * 50)
    runs = {"ann": 8, "bob": 1}
    while runs["ann"] > runs["bob"] + 1:
        next(place for place in greedy if place.since is not None).leave()
        before, runs = (
            runs,
            {
                key: sum(place.since is not None for place in places)
                for key, places in (("ann", greedy), ("bob", bob))
            },
        )
        assert runs["ann"] < before["ann"]
        assert gate.running == 8
    assert runs == {"ann": 4, "bob": 4}


async def test_without_keys_no_slot_is_kept() -> None:
    gate = gate_of(max_running=3)
    assert [place.waits for place in joined(gate, *[None] * 4)] == [False] * 3 + [True]


@given(
    steps=st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), min_size=20, max_size=200),
    max_running=st.integers(1, 4),
)
async def test_no_key_starves(steps: list[tuple[str, bool]], max_running: int) -> None:
    """A key that has nothing running waits at most for one turn of each other key."""
    gate = gate_of(max_running, max_queue=1000)
    running = joined(gate, *"abc"[:max_running])
    queued: list[Place] = []
    overtaken: Counter[str | None] = Counter()
    hungry = gate.join(key="hungry")
    for key, ends in steps:
        queued.append(gate.join(key=key))
        if ends:
            running.pop(0).leave()
            if not hungry.waits:
                break
            for place in [place for place in queued if not place.waits]:
                queued.remove(place)
                running.append(place)
                overtaken[place.key] += 1
    assert all(times <= 1 for times in overtaken.values()), overtaken


async def test_a_full_queue_refuses_low_priorities_first() -> None:
    gate = gate_of(max_running=1, max_queue=3)
    joined(gate, "ann")
    [batch] = joined(gate, "bob", priority=10)
    people = joined(gate, "ann", "ann", "ann")
    assert [place.waits for place in (batch, *people)] == [False, True, True, True]
    with pytest.raises(QueueFullError):
        await batch.admitted


async def timers() -> None:
    """Those that are due run."""
    for _ in range(2):
        await asyncio.sleep(0)


async def test_who_has_waited_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", clock)
    gate = gate_of(max_running=1, queue_timeout=30, clock=clock)
    [running] = joined(gate, "ann")
    [first] = joined(gate, "ann")
    clock.now = 20.0
    [second] = joined(gate, "ann")
    part = gate.join(key="bob", goes_on=True)
    clock.now = 30.5
    await timers()
    assert [first.waits, second.waits, part.waits] == [False, True, True]
    with pytest.raises(QueueFullError, match="may wait for 30 s"):
        await first.admitted
    running.leave()
    part.leave()
    assert not second.waits
    clock.now = 90.0
    await timers()
    await second.admitted
    second.leave()
    assert (gate.running, gate.waiting) == (0, 0)
