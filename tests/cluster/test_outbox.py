"""What a server has not been sent yet, and what crosses, without a cluster."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay import (
    Delta,
    EngineDeadError,
    EngineStats,
    InvalidRequestError,
    Lora,
    MemoryUse,
    ModelInfo,
    ServingError,
    TokenLogprob,
)
from enginebay_cluster.ray.adapters import Adapters
from enginebay_cluster.ray.messages import Hello, Report, pack, unpack
from enginebay_cluster.ray.outbox import Outbox
from enginebay_cluster.ray.sums import sum_of_memory, sum_of_stats

deltas = st.builds(
    Delta,
    index=st.integers(0, 2),
    text=st.text(max_size=3),
    token_ids=st.lists(st.integers(0, 9), max_size=3).map(tuple),
    logprobs=st.none() | st.just((TokenLogprob(1, "a", -0.5),)),
)


@given(st.lists(st.tuples(st.integers(0, 3), deltas), max_size=20))
def test_text_and_tokens_of_each_choice_arrive_whole_and_in_order(
    gained: list[tuple[int, Delta]],
) -> None:
    async def run() -> None:
        outbox = Outbox()
        for number, delta in gained:
            outbox.put(number, delta)
        arrived = unpack(pack(await outbox.take(0.001)))
        assert not isinstance(arrived, Hello | Report)
        for number in range(4):
            for index in range(3):
                sent = [d for n, d in gained if n == number and d.index == index]
                got = [
                    item
                    for n, items in arrived
                    for item in items
                    if n == number and isinstance(item, Delta) and item.index == index
                ]
                assert "".join(d.text for d in sent) == "".join(d.text for d in got)
                assert sum((d.token_ids for d in sent), ()) == sum((d.token_ids for d in got), ())
        assert await outbox.take(0.001) == []

    asyncio.run(run())


def test_other_messages_and_errors_cross() -> None:
    hello = Hello("v1", ModelInfo(context_length=10, vocab_size=3), "node")
    report = Report(EngineStats(running=1), "restarting", MemoryUse(1, 2))
    error = InvalidRequestError("wrong", param="prompt")
    assert unpack(pack(hello)) == hello
    assert unpack(pack(report)) == report
    [(number, [found])] = list(unpack(pack([(7, [error])])))  # type: ignore[arg-type]
    assert (number, str(found), type(found)) == (7, "wrong", InvalidRequestError)


class Work:
    """What a request does, until it is cancelled."""

    def __init__(self) -> None:
        self.began, self.ended = asyncio.Event(), asyncio.Event()

    async def run(self) -> None:
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()


async def test_a_second_link_ends_what_ran_by_the_first() -> None:
    outbox = Outbox()
    work = Work()
    running = asyncio.create_task(outbox.run(1, work.run()))
    await work.began.wait()
    outbox.attach()
    outbox.put(1, Delta(text="lost"))
    assert not work.ended.is_set()
    outbox.attach()
    await running
    assert work.ended.is_set()
    assert await outbox.take(0) == []
    outbox.detach()
    outbox.detach()
    assert outbox.is_idle


async def test_a_request_that_is_cancelled_ends_its_work() -> None:
    outbox, work = Outbox(), Work()
    running = asyncio.create_task(outbox.run(1, work.run()))
    await work.began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert work.ended.is_set()
    assert outbox.is_idle


def test_sums_are_of_what_is_told() -> None:
    one, other = EngineStats(running=1, steps=5, kv_used=3), EngineStats(running=2, steps=7)
    assert sum_of_stats([one, None, other]) == EngineStats(running=3, steps=12, kv_used=3)
    assert sum_of_stats([None]) is None
    assert sum_of_memory([MemoryUse(1, 2), None, MemoryUse(3)]) == MemoryUse(4, 2)
    assert sum_of_memory([]) is None


class Replicas:
    """Remembers what each was told; `gone` ones are lost, `refusing` ones say no."""

    def __init__(self) -> None:
        self.has: dict[str, dict[str, object]] = {}
        self.gone: set[str] = set()
        self.refusing: set[str] = set()

    async def call(self, replica: str, method: str, name: str, loras: object = None) -> None:
        if replica in self.gone:
            raise EngineDeadError("it is gone")
        if method == "load_adapter" and replica in self.refusing:
            raise InvalidRequestError("it does not fit")
        here = self.has.setdefault(replica, {})
        if method == "load_adapter":
            here[name] = loras
        else:
            here.pop(name, None)


async def test_adapters_are_on_engines_that_start_later() -> None:  # SCALE-18
    replicas = Replicas()
    adapters = Adapters(replicas.call)
    await adapters.load("x", [Lora("/x")], ["a", "b"])
    await adapters.load("y", [Lora("/y")], ["a", "b"])
    await adapters.unload("y", ["a", "b"])
    await adapters.load_into("c")
    expected = {"x": (Lora("/x"),)}
    assert replicas.has == {"a": expected, "b": expected, "c": expected}


async def test_an_adapter_that_one_engine_refuses_is_on_none() -> None:
    replicas = Replicas()
    replicas.refusing = {"b"}
    adapters = Adapters(replicas.call)
    with pytest.raises(ServingError, match="does not fit"):
        await adapters.load("x", [Lora("/x")], ["a", "b"])
    await adapters.load_into("c")
    assert replicas.has == {"a": {}, "b": {}}


async def test_an_engine_that_is_lost_meanwhile_does_not_count() -> None:
    replicas = Replicas()
    replicas.gone = {"b"}
    adapters = Adapters(replicas.call)
    await adapters.load("x", [Lora("/x")], ["a", "b"])
    assert replicas.has == {"a": {"x": (Lora("/x"),)}}
