"""Whatever happens in whatever order: no place is lost or doubled, usage adds up exactly."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from enginebay.chat.answer.account import Used
from enginebay.models.admission_queue import Place
from enginebay.server.usage.usage_file import Slot, read_usage
from enginebay_cluster.contract import ClusterError
from enginebay_cluster.fronts.shared_gate import SharedGate
from tests.effort import examples
from tests.fronts.site import FrontAt, Site, outcome, quiet, site

ROOM = 4
FRONTS = ("one", "two")

JOIN = st.tuples(
    st.just("join"),
    st.sampled_from([0, 1]),
    st.sampled_from(["ann", "bob", None]),
    st.integers(1, 3),
)
LEAVE = st.tuples(st.just("leave"), st.integers(0, 30))
LOSS = st.tuples(
    st.just("loss"),
    st.sampled_from(["before", "after"]),
    st.sampled_from(["join", "leave", "hello", "beat", "hand_over"]),
    st.integers(1, 3),
)
TIME = st.tuples(st.just("time"), st.sampled_from([0.1, 0.5, 1.0, 2.5]))
DEATH = st.just(("ledger dies",))
APART = st.tuples(st.just("apart"), st.sampled_from([0, 1]))
TOGETHER = st.just(("together",))
SILENCE = st.just(("time", 13.0))
MOVES = (JOIN, JOIN, JOIN, LEAVE, LEAVE, LOSS, LOSS, TIME)
STEPS = st.lists(st.one_of(*MOVES, *MOVES, DEATH), min_size=10, max_size=40)
MORE_STEPS = st.lists(
    st.one_of(*MOVES, *MOVES, DEATH, APART, TOGETHER, SILENCE), min_size=10, max_size=40
)


@dataclass
class World:
    """Fronts with a gate each, and the places that were asked for."""

    at: Site
    gates: list[SharedGate]
    places: list[Place] = field(default_factory=list)
    lost: Counter[tuple[str, str]] = field(default_factory=Counter)

    async def do(self, step: tuple[object, ...]) -> None:
        match step:
            case ("join", int(front), key, int(choices)):
                assert key is None or isinstance(key, str)
                self.places.append(self.gates[front].join(choices, key=key, model="chat"))
            case ("leave", int(number)) if self.places:
                self.places.pop(number % len(self.places)).leave()
            case ("loss", str(when), str(method), int(count)):
                self.lost[when, method] += count
            case ("time", float(seconds)):
                await self.at.passes(seconds)
            case ("ledger dies",):
                self.at.cluster.settles = False
                self.at.cluster.lose()
            case ("apart", int(front)):
                self.at.cluster.cut_off.add(self.at.fronts[front].front.id)
            case ("together",):
                self.at.cluster.cut_off.clear()

    async def before(self, front: str, method: str) -> None:
        self._lose("before", method)

    async def after(self, front: str, method: str) -> None:
        self._lose("after", method)

    def _lose(self, when: str, method: str) -> None:
        if self.lost[when, method]:
            self.lost[when, method] -= 1
            raise ClusterError(f"{method} was lost {when}")

    @property
    def running(self) -> int:
        return sum(gate.running for gate in self.gates)

    async def heal(self) -> None:
        """All is well again, for a while."""
        self.lost.clear()
        self.at.cluster.cut_off.clear()
        await self.at.passes(5)

    async def check_that_both_sides_agree(self) -> None:
        gate = self.at.ledger._gates["chat"]
        assert gate.running == self.running
        assert gate.waiting == sum(gate.waiting for gate in self.gates)
        assert not gate.waiting or gate.running >= ROOM - 1, "somebody waits though there is room"
        held = [place for place in self.places if outcome(place) == "runs"]
        assert self.running == sum(place.choices for place in held)
        for place in self.places:
            place.leave()
        await self.at.passes(2.5)
        assert (gate.running, gate.waiting, gate._shares) == (0, 0, {})
        assert not any(member.held for member in self.at.ledger._members)


async def world(at: Site) -> World:
    gates = [(await at.front(name)).gate(ROOM) for name in FRONTS]
    await quiet()
    made = World(at, gates)
    at.cluster.before, at.cluster.after = made.before, made.after
    return made


@examples(200)
@given(STEPS)
async def test_never_more_than_there_is_room_for(steps: list[tuple[object, ...]]) -> None:
    # SCALE-11
    async with site() as at:
        it = await world(at)
        for step in steps:
            await it.do(step)
            await quiet()
            largest = max((place.choices for place in it.places), default=1)
            most = ROOM + 2 * largest  # a request for several, and that of a key that ran nothing
            assert it.running < most, "more run than may, as anywhere"
        await it.heal()
        await it.check_that_both_sides_agree()


@examples(200)
@given(MORE_STEPS)
async def test_no_place_is_lost_or_doubled(steps: list[tuple[object, ...]]) -> None:
    # SCALE-12
    async with site() as at:
        it = await world(at)
        for step in steps:
            await it.do(step)
            await quiet()
        await it.heal()
        await it.check_that_both_sides_agree()


USE = st.tuples(
    st.just("use"), st.sampled_from([0, 1]), st.sampled_from(["ann", "bob"]), st.integers(0, 9)
)
WRITE = st.tuples(st.just("write"), st.sampled_from([0, 1]))


USES = st.lists(
    st.one_of(USE, USE, USE, WRITE, WRITE, LOSS, TIME, DEATH, APART, TOGETHER),
    min_size=5,
    max_size=30,
)


def use(front: FrontAt, key: str, tokens: int) -> None:
    front.records.add(key, "m", Used(1, tokens, 0, 1))


@examples(200)
@given(USES)
async def test_usage_adds_up_exactly(steps: list[tuple[object, ...]]) -> None:
    """In the file of the ledger, whichever calls and answers are lost, and whoever dies."""
    # SCALE-10
    with TemporaryDirectory() as folder:
        path = Path(folder) / "usage.db"
        async with site(usage=path) as at:
            it = await world(at)
            used: dict[Slot, Used] = {}
            for step in steps:
                match step:
                    case ("use", int(front), str(key), int(tokens)):
                        use(at.fronts[front], key, tokens)
                        slot = Slot("2026-01-31", key, "m")
                        used.setdefault(slot, Used()).add(Used(1, tokens, 0, 1))
                    case ("write", int(front)):
                        await at.fronts[front].records.write()
                    case _:
                        await it.do(step)
                await quiet()
            await it.heal()
            for each in at.fronts:
                await each.records.write()
            for each in at.fronts:
                assert await each.records.usage(date(2026, 1, 1), None) == used
                for key in ("ann", "bob"):
                    tokens = sum(its.tokens for slot, its in used.items() if slot.key == key)
                    assert each.records.tokens_today(key) == tokens
        assert read_usage(path, "2026-01-01", None) == used
