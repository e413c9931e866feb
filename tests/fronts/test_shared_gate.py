"""Turns at the engines of several fronts. SCALE-11 SCALE-12"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from enginebay.config.keys import Key
from enginebay.contract.errors import BackendUnavailableError, RequestCancelledError
from enginebay.models.admission_queue import GateSize, Place
from enginebay_cluster.contract import ClusterError, SharedObject
from enginebay_cluster.fronts.said import Turn
from enginebay_cluster.fronts.shared_gate import SharedGate
from enginebay_cluster.fronts.timing import PATIENCE
from tests.fronts.site import outcome, quiet, site


async def join(
    gate: SharedGate, *keys: str | None, choices: int = 1, priority: int = 0
) -> list[Place]:
    """Join one after the other."""
    places = []
    for key in keys:
        places.append(gate.join(choices, key=key, priority=priority, model="chat"))
        await quiet()
    return places


def states(*places: Place) -> list[str]:
    return [outcome(place) for place in places]


async def leave(*places: Place) -> None:
    for place in places:
        place.leave()
    await quiet()


async def test_two_fronts_never_have_more_than_there_is_room_for() -> None:
    # SCALE-11
    async with site() as at:
        one, two = (await at.front("one")).gate(3), (await at.front("two")).gate(3)
        first = await join(one, None, None)
        second = await join(two, None, None)
        assert states(*first, *second) == ["runs", "runs", "runs", "waits"]
        assert (one.running, one.waiting, two.running, two.waiting) == (2, 0, 1, 1)
        assert (two.running_of("chat"), two.waiting_of("chat")) == (1, 1)
        await leave(first[0])
        assert states(*second) == ["runs", "runs"]
        await leave(*first, *second)
        assert (one.running, two.running, one._shares, two._shares) == (0, 0, {}, {})
        assert at.ledger._gates["chat"].running == 0


async def test_keys_take_turns_wherever_they_ask() -> None:
    # SCALE-11
    async with site() as at:
        one, two = (await at.front("one")).gate(1), (await at.front("two")).gate(1)
        [running] = await join(one, None)
        many = await join(one, "ann", "ann", "ann")
        few = await join(two, "bob", "bob")
        order = []
        waiting = {"a0": many[0], "a1": many[1], "a2": many[2], "b0": few[0], "b1": few[1]}
        while waiting:
            await leave(running)
            [name] = [name for name, place in waiting.items() if not place.waits]
            order.append(name)
            running = waiting.pop(name)
        assert order == ["a0", "b0", "a1", "b1", "a2"]


async def test_one_slot_is_kept_for_keys_of_any_front() -> None:
    # SEC-10
    async with site() as at:
        one, two = (await at.front("one")).gate(3), (await at.front("two")).gate(3)
        greedy = [*await join(one, "ann", "ann", "ann"), *await join(two, "ann", priority=-9)]
        [bob] = await join(two, "bob")
        assert states(*greedy, bob) == ["runs", "runs", "waits", "waits", "runs"]
        [cat] = await join(one, "cat")
        assert states(cat) == ["waits"]
        await leave(greedy[0])
        assert states(*greedy[2:], cat) == ["waits", "waits", "runs"]


async def test_a_lower_number_goes_first_also_at_another_front() -> None:
    async with site() as at:
        one, two = (await at.front("one")).gate(1), (await at.front("two")).gate(1)
        [running] = await join(one, None)
        [usual] = await join(one, "ann")
        [urgent] = await join(two, "bob", priority=-1)
        await leave(running)
        assert states(usual, urgent) == ["waits", "runs"]


async def test_an_admission_is_one_call_and_those_that_leave_together_are_told_at_once() -> None:
    async with site() as at:
        gate = (await at.front()).gate(10)
        await quiet()
        at.cluster.calls.clear()
        places = await join(gate, None, None, None)
        assert at.cluster.calls == ["join"] * 3
        await leave(*places)
        assert at.cluster.calls == ["join"] * 3 + ["leave"]


async def test_a_full_queue_is_that_of_all_fronts() -> None:
    async with site() as at:
        one = (await at.front("one")).gate(1, max_queue=2)
        two = (await at.front("two")).gate(1, max_queue=2)
        await join(one, "ann")
        greedy = await join(one, "ann", "ann")
        [modest] = await join(two, "bob")
        assert states(*greedy, modest) == ["waits", "queue_full", "waits"]
        [late] = await join(two, "ann")
        assert states(late) == ["queue_full"]
        assert (one.waiting, two.waiting) == (1, 1)


async def test_who_waits_too_long_is_refused_and_leaves_the_ledger() -> None:
    async with site() as at:
        front = await at.front()
        gate = SharedGate(front.front, "chat", GateSize(1, 9), queue_timeout=0.001)
        await quiet()
        [running] = await join(gate, None)
        waiting = gate.join(model="chat")
        with pytest.raises(Exception, match="requests may wait for"):
            await waiting.admitted
        await quiet()
        assert outcome(waiting) == "queue_full"
        assert at.ledger._gates["chat"].waiting == 0
        await leave(running, waiting)


async def test_a_client_that_leaves_frees_its_place() -> None:
    async with site() as at:
        gate = (await at.front()).gate(1)
        [running, waiting] = await join(gate, None, None)
        waiting.admitted.cancel()
        await leave(waiting)
        assert at.ledger._gates["chat"].waiting == 0
        gone = gate.join(model="chat")
        gone.admitted.cancel()
        gone.leave()  # before the ledger has heard of it
        await leave(running)
        assert (gate.running, at.ledger._gates["chat"].running) == (0, 0)


async def test_a_leave_that_overtakes_its_join_is_no_leak() -> None:
    async with site() as at:
        gate = (await at.front()).gate(1)
        held = asyncio.Event()

        async def hold(front: str, method: str) -> None:
            if method == "join":
                await held.wait()

        at.cluster.before = hold
        [place] = await join(gate, None)
        await leave(place)
        held.set()
        await quiet()
        assert at.ledger._gates["chat"].running == 0


async def test_positions_count_all_fronts() -> None:
    async with site() as at:
        one, two = (await at.front("one")).gate(1), (await at.front("two")).gate(1)
        await join(one, "ann")
        [first] = await join(one, "ann")
        [second] = await join(two, "ann")
        assert [second.position] == [None], "it was not asked for"
        for gate in (one, two):
            gate.use_positions(await gate._front.ledger.call("positions"))
        assert (first.position, second.position) == (0, 1)


async def test_the_last_size_that_a_front_says_holds() -> None:
    async with site() as at:
        one, two = (await at.front("one")).gate(1), (await at.front("two")).gate(1)
        places = [*await join(one, None, None), *await join(two, None, None)]
        assert states(*places) == ["runs", "waits", "waits", "waits"]
        two.resize(GateSize(3, 100))
        await quiet()
        assert states(*places) == ["runs", "runs", "runs", "waits"]
        one.resize(GateSize(None, 100))
        await quiet()
        assert states(*places) == ["runs"] * 4


async def test_a_size_is_told_until_it_is_known() -> None:
    async with site() as at:
        front = await at.front()
        gate = front.gate(1)
        places = await join(gate, None, None)
        at.cluster.down = True
        gate.resize(GateSize(2, 100))
        await quiet()
        at.cluster.down = False
        await at.passes(3)
        assert states(*places) == ["runs", "runs"]


async def test_a_gate_that_closes_is_closed_at_its_front() -> None:
    async with site() as at:
        one, two = (await at.front("one")).gate(1), (await at.front("two")).gate(1)
        [running] = await join(one, None)
        [here] = await join(one, None)
        [other] = await join(two, None)
        one.close(BackendUnavailableError("the model was unloaded"))
        await quiet()
        assert states(running, here, other) == ["runs", "backend_unavailable", "waits"]
        with pytest.raises(BackendUnavailableError):
            one.join()
        [more] = [one.join(model="chat", goes_on=True)]
        await leave(running)
        assert states(other) == ["runs"]
        await leave(other, more)
        two.refuse("chat", BackendUnavailableError("…"))


async def test_a_dead_front_loses_its_places_within_fifteen_seconds() -> None:
    # SCALE-12
    async with site() as at:
        dead, other = await at.front("dead"), await at.front("other")
        await join(dead.gate(2), None, None, None)
        places = await join(other.gate(2), None, None)
        dead.die()
        await at.passes(9)
        assert states(*places) == ["waits", "waits"]
        await at.passes(6)
        assert states(*places) == ["runs", "runs"]


async def test_a_front_that_was_only_frozen_says_again_what_runs() -> None:
    async with site() as at:
        frozen, other = await at.front("frozen"), await at.front("other")
        gate = frozen.gate(2)
        places = await join(gate, None, None, None)
        frozen.die()
        await at.passes(15)
        later = await join(other.gate(2), None, None, None)
        assert states(*places, *later) == [
            "runs",
            "runs",
            "cluster_unavailable",
            "runs",
            "runs",
            "waits",
        ]
        at.cluster.cut_off.clear()
        await at.passes(3)
        assert at.ledger._gates["chat"].running == 4, "as many as there are"
        await leave(later[0], later[1])
        assert states(later[2]) == ["waits"]
        await leave(*places)
        assert states(later[2]) == ["runs"]


async def test_a_front_that_ends_gives_everything_back_at_once() -> None:
    async with site() as at:
        ends, other = await at.front("ends"), await at.front("other")
        await join(ends.gate(1), None, None)
        [place] = await join(other.gate(1), None)
        await ends.end()
        await quiet()
        assert states(place) == ["runs"]


async def test_after_the_ledger_is_lost_what_runs_counts_again() -> None:
    # SCALE-11
    async with site() as at:
        one, two = (await at.front("one")).gate(3), (await at.front("two")).gate(3)
        running = [*await join(one, "ann", "ann"), *await join(two, "bob")]
        waiting = [*await join(one, "ann"), *await join(two, "bob")]
        at.cluster.settles = False
        at.cluster.lose()
        await quiet()
        new = [*await join(one, "eve"), *await join(two, "eve")]
        assert states(*running, *waiting, *new) == ["runs"] * 3 + ["waits"] * 4
        await at.passes(2)
        assert states(*running, *waiting, *new) == ["runs"] * 3 + ["waits"] * 4
        assert at.ledger._gates["chat"].running == 3
        everything = [*running, *waiting, *new]
        while everything:
            runs = states(*everything).count("runs")
            assert min(2, len(everything)) <= runs <= 3  # one slot is kept for other keys
            first = next(place for place in everything if not place.waits)
            everything.remove(first)
            await leave(first)
        assert at.ledger._gates["chat"].running == 0


async def test_a_new_ledger_lets_nobody_in_before_fronts_can_have_told_it() -> None:
    async with site() as at:
        gate = (await at.front("one")).gate(1)
        await join(gate, None)
        slow = await at.front("slow")
        await join(slow.gate(None, engine="more"), None)
        at.cluster.settles = False
        at.cluster.cut_off.add(slow.front.id)
        at.cluster.lose()
        [new] = await join(gate, None)
        await at.passes(0.9)
        assert states(new) == ["waits"]
        at.cluster.cut_off.clear()
        await at.passes(2)
        assert at.ledger._gates["more"].running == 1


async def test_requests_wait_while_the_ledger_is_away_and_get_an_error_in_the_end() -> None:
    async with site() as at:
        gate = (await at.front()).gate(1)
        [running] = await join(gate, None)
        at.cluster.down = True
        [waiting] = await join(gate, None)
        await at.passes(1)
        assert states(running, waiting) == ["runs", "waits"]
        at.cluster.down = False
        await at.passes(1)
        await leave(running)
        assert states(waiting) == ["runs"]
        at.cluster.down = True
        [refused] = await join(gate, None)
        await at.passes(PATIENCE + 1)
        assert states(waiting, refused) == ["runs", "cluster_unavailable"]
        with pytest.raises(ClusterError, match=r"start its head; .*enginebay cluster status"):
            await refused.admitted
        [at_once] = await join(gate, None)
        assert states(at_once) == ["cluster_unavailable"]
        assert gate.waiting == 0


async def test_a_place_is_kept_when_only_its_answer_was_lost() -> None:
    async with site() as at:
        gate = (await at.front()).gate(2)
        lost = Counter[str]()

        async def lose(front: str, method: str) -> None:
            lost[method] += 1
            if method == "join" and lost[method] < 3:
                raise ClusterError("the answer was lost")

        at.cluster.after = lose
        [place] = await join(gate, None)
        await at.passes(2)
        assert states(place) == ["runs"]
        assert lost["join"] == 3
        assert at.ledger._gates["chat"].running == 1


async def test_a_ledger_that_is_frozen_is_given_up() -> None:
    async with site() as at:
        gate = (await at.front()).gate(1)
        [running] = await join(gate, None)
        thawed = asyncio.Event()

        async def freeze(front: str, method: str) -> None:
            await thawed.wait()

        at.cluster.before = freeze
        [waiting] = await join(gate, None)
        await at.passes(5)
        assert states(running, waiting) == ["runs", "waits"]
        await at.passes(10)
        assert states(running, waiting) == ["runs", "cluster_unavailable"]
        thawed.set()
        at.cluster.before = None
        await at.passes(3)
        await leave(running)
        [late] = await join(gate, None)
        assert states(late) == ["runs"]
        assert at.ledger._gates["chat"].running == 1


async def test_a_cluster_that_waits_for_its_head_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with site() as at:
        gate = (await at.front()).gate(1)
        there, share = asyncio.Event(), at.cluster.share
        asked = 0

        async def wait_and_share(name: str, create: Callable[[], Any]) -> SharedObject:
            nonlocal asked
            asked += 1
            await there.wait()
            return await share(name, create)

        async def wait(front: str, method: str) -> None:
            await there.wait()

        monkeypatch.setattr(at.cluster, "share", wait_and_share)
        at.cluster.down = True
        await at.passes(2)
        at.cluster.down, at.cluster.before = False, wait
        [refused] = await join(gate, None)
        await at.passes(PATIENCE + 1)
        assert states(refused) == ["cluster_unavailable"]
        await at.passes(30)
        assert asked == 1
        there.set()
        await at.passes(3)
        [late] = await join(gate, None)
        assert states(late) == ["runs"]


async def test_a_lost_leave_is_made_up_for() -> None:
    async with site() as at:
        gate = (await at.front()).gate(1)
        [place] = await join(gate, None)
        lost: list[str] = []

        async def lose(front: str, method: str) -> None:
            if method == "leave":
                lost.append(method)
                raise ClusterError("lost")

        at.cluster.before = lose
        await leave(place)
        assert lost
        await at.passes(0.1)
        assert at.ledger._gates["chat"].running == 0


async def test_what_runs_is_told_again_if_the_ledger_has_missed_it() -> None:
    async with site() as at:
        front = await at.front()
        gate = front.gate(1)
        [place] = await join(gate, None)
        member = at.ledger._members.hear(front.front.id)
        member.give_back(*member.held)
        assert at.ledger._gates["chat"].running == 0
        await at.passes(2.5)
        assert at.ledger._gates["chat"].running == 1
        await leave(place)


async def test_a_call_that_arrives_after_its_request_has_gone_holds_nothing() -> None:
    async with site() as at:
        front = await at.front()
        front.gate(1)
        await at.passes(3)
        id = front.front.id
        late = Turn(engine="chat", choices=1, model="chat", key=None, priority=0, goes_on=False)
        front.front.give_back(front.front.ticket(late))
        await at.passes(3)
        refused = await at.ledger.join(id, front.front._newest, late)
        assert isinstance(refused, RequestCancelledError)
        entered = await at.ledger.enter(id, front.front._newest, Key("ann", b""))
        assert entered.seen.running == 0
        assert not at.ledger._members.hear(id).held


async def test_a_fault_of_the_ledger_is_an_error_of_the_request_only() -> None:
    async with site() as at:
        front = await at.front()
        gate = front.gate(1)

        async def fails(*args: object) -> None:
            raise RuntimeError("a bug")

        ledger: Any = at.ledger
        join_there, ledger.join, ledger.hand_over, ledger.orders = ledger.join, fails, fails, fails
        [place] = await join(gate, None)
        assert states(place) == ["internal_error"]
        await front.records.write()
        await at.passes(3)
        ledger.join = join_there
        [place] = await join(gate, None)
        assert states(place) == ["runs"]
        del ledger.orders
        assert at.cluster.bugs
        at.cluster.bugs.clear()
        await leave(place)
