"""What servers that share limits lose when one of them or the head fails, on machines of their own.

As `test_faults`; here `share_limits` is on.
"""

import asyncio
import time
from collections.abc import Iterator

import pytest

from tests.cluster import hosts
from tests.cluster.asking import said, whole
from tests.cluster.far_site import FarSite, far_site, settled, some, talker
from tests.cluster.site import BOB, Front
from tests.cluster.streams import SLACK, Answers, answer, eventually, note

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarSite]:
    if reason := hosts.cannot_be_made():
        pytest.skip(reason)
    with far_site(tmp_path_factory.mktemp("site")) as here:
        pirate = here.folder / "loras" / "pirate"
        pirate.mkdir(parents=True)
        (pirate / "adapter_config.json").write_text("{}", encoding="utf-8")
        here.configure([talker(here), {**talker(here), **NEAR}], share_limits=True)
        here.begin()
        yield here


NEAR = {"name": "near", "cluster": None}
"""A model of each server's own."""


@pytest.fixture(scope="module")
def front(here: FarSite) -> Front:
    return here.server()


# SCALE-12
async def test_a_server_that_holds_all_places_is_killed(here: FarSite, front: Front) -> None:
    await settled(here, front)
    other = await asyncio.to_thread(here.server)
    before = len(here.happened("add"))
    async with other.client() as lost, other.client(BOB) as bobs, front.client() as openai:
        bobs_held = Answers(90_000)
        await bobs_held.begin(bobs, 2)
        held = Answers(90_000)
        await held.begin(lost, 13)
        ran = {each["id"] for each in here.happened("add")[before:]}
        assert len(ran) == 15  # the batches of both engines, but a slot that is kept for other keys
        async with front.client(BOB) as bob:
            refused = await answer(bob, "too many", 3)
            assert getattr(refused.error, "code", None) == "rate_limit_exceeded"
            waiting = asyncio.create_task(answer(openai, "when there is room", 3))
            killed = time.monotonic()
            here.kill(other)
            while (await answer(bob, "again", 3)).error:
                assert time.monotonic() < killed + 15 + SLACK
                await asyncio.sleep(0.2)
        note("server killed: its key may ask again after", time.monotonic() - killed)
        let_in = await waiting
        assert let_in.text == whole(3)
        note("server killed: others are let in after", let_in.ended - killed)
        assert let_in.ended < killed + 15 + SLACK
        await eventually(lambda: ran <= {each["id"] for each in here.happened("abort")})
        aborted = [each["time"] for each in here.happened("abort") if each["id"] in ran]
        note("server killed: its requests were aborted after", max(aborted) - now_was(killed))
        await asyncio.gather(*held.asked, *bobs_held.asked, return_exceptions=True)
    await settled(here, front)


def now_was(monotonic: float) -> float:
    """The time of day then."""
    return time.time() - time.monotonic() + monotonic


# SCALE-18
async def test_a_lora_is_there_on_engines_and_servers_that_come_later(
    here: FarSite, front: Front
) -> None:
    await settled(here, front)
    body = {"loras": [{"name": "pirate", "scaling": 0.5}], "model": "talker"}
    loaded = await asyncio.to_thread(front.post, "/v1/lora/load", body)
    assert loaded.status_code == 200, loaded.text
    assert {each["host"] for each in here.happened("load_adapter")} == {"left", "right"}
    killed = time.time()
    some(here.machines["left"]).kill()
    await asyncio.sleep(1)
    await settled(here, front)
    [again] = [each for each in here.happened("load_adapter") if each["time"] > killed]
    assert again["host"] == "left"
    note("engine killed: the next one has the LoRA after", again["time"] - killed)
    later = await asyncio.to_thread(here.server)
    try:
        [lora] = later.get("/v1/lora?model=talker").json()["data"]
        assert (lora["id"], lora["scaling"]) == ("pirate", 0.5)
        for server in (front, later):
            async with server.client() as openai:
                asked = [said(openai, f"{i} " * 20, 20) for i in range(8)]
                assert await asyncio.gather(*asked) == [(whole(20), None)] * 8
        first = next(e for e in here.happened("add") if e["pid"] == again["pid"])
        assert first["time"] > again["time"]
        unloaded = await asyncio.to_thread(front.post, "/v1/lora/unload", {"model": "talker"})
        assert unloaded.status_code == 200, unloaded.text
        assert later.get("/v1/lora?model=talker").json()["data"] == []
    finally:
        here.kill(later)


# SCALE-14
async def test_the_head_with_the_limits_is_frozen(here: FarSite, front: Front) -> None:
    await settled(here, front)
    async with front.client() as openai:
        answers = Answers(1000)
        await answers.begin(openai, 8)
        here.head.freeze()
        try:
            refused = await answer(openai, "meanwhile", 3)
            note("head frozen: a new request is refused after", refused.ended - refused.begun)
            assert getattr(refused.error, "code", None) == "cluster_unavailable"
            assert refused.ended < refused.begun + 10 + SLACK
            assert (await answer(openai, "near", 3, "near")).text == whole(3)
        finally:
            here.head.thaw()
        on = time.monotonic()
        while (late := await answer(openai, "again", 3)).error:
            assert time.monotonic() < on + 30, late.error
        note("head thawed: new requests are answered after", time.monotonic() - on)
        assert await answers.broken() == []
    await settled(here, front)


# SCALE-14
async def test_the_head_with_the_limits_is_turned_off_and_on(here: FarSite, front: Front) -> None:
    await settled(here, front)
    async with front.client() as openai, front.client(BOB) as bob:
        answers = Answers(1500)
        await answers.begin(openai, 8)
        off = time.monotonic()
        await asyncio.to_thread(here.head.turn_off)
        for asked in (openai, bob):
            refused = await answer(asked, "meanwhile", 3)
            note("head off: a new request is refused after", refused.ended - refused.begun)
            assert getattr(refused.error, "code", None) == "cluster_unavailable"
            assert getattr(refused.error, "status_code", None) == 503
            assert refused.ended < refused.begun + 5 + SLACK
        near = await answer(openai, "near", 3, "near")
        assert near.text == whole(3)
        health = await asyncio.to_thread(front.get, "/health")
        assert health.json()["state"] == "degraded", health.text
        await asyncio.sleep(max(0.0, off + 15 - time.monotonic()))
        here.head.boot()
        on = time.monotonic()
        await asyncio.to_thread(here.run_head)
        note("head on: runs after", time.monotonic() - on)
        while (late := await answer(openai, "again", 3)).error:
            assert time.monotonic() < on + 60, late.error
        note("head on: new requests are answered after", time.monotonic() - on)
        while (late := await answer(bob, "again", 3)).error:
            assert time.monotonic() < on + 60, late.error
        assert await answers.broken() == []
    await settled(here, front)
