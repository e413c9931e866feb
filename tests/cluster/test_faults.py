"""What is lost when parts of a cluster fail, and how long it takes until all is well again.

On machines of their own (see `hosts`), since nodes on one machine die together. Each test leaves a
cluster that is whole, and prints how long things took: `pytest --thorough -rP` shows it.
"""

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster import hosts
from tests.cluster.asking import said, whole
from tests.cluster.far_site import FarSite, both_answer, far_site, settled, some, talker
from tests.cluster.hosts import Host
from tests.cluster.site import Front
from tests.cluster.streams import SLACK, Answers, answer, eventually, note, trickle

pytestmark = pytest.mark.thorough


def models(here: FarSite, **options: Any) -> list[dict[str, Any]]:
    return [talker(here, **options), talker(here, "slow", prefill=1.5, **options)]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarSite]:
    if reason := hosts.cannot_be_made():
        pytest.skip(reason)
    with far_site(tmp_path_factory.mktemp("site")) as here:
        here.configure(models(here))
        wrong = here.folder / "wrong.token"
        wrong.touch(mode=0o600)
        wrong.write_text("0123456789abcdef0123456789abcdef", encoding="utf-8")
        here.begin()
        yield here


@pytest.fixture(scope="module")
def front(here: FarSite) -> Front:
    """One that shares nothing with others."""
    return here.server()


@pytest.fixture
def well(here: FarSite, front: Front) -> Iterator[None]:
    """All is well before and after."""
    asyncio.run(settled(here, front))
    yield
    asyncio.run(settled(here, front))


# SCALE-5
async def test_an_engine_is_killed(here: FarSite, front: Front, well: None) -> None:
    left = here.machines["left"]
    async with front.client() as openai:
        answers = Answers(400)
        await answers.begin(openai, 8)
        async with trickle(openai):
            killed = time.monotonic()
            some(left).kill()
            broken = await answers.broken()
            assert 0 < len(broken) < 8
            note("engine killed: its streams ended after", max(e.ended for e in broken) - killed)
            assert max(each.ended for each in broken) < killed + 1 + SLACK
            await both_answer(here, front, 30)
            note("engine killed: the next one answers after", time.monotonic() - killed)


# SCALE-6
async def test_what_an_engine_has_not_begun_moves(here: FarSite, front: Front, well: None) -> None:
    before = len(here.happened("add"))
    async with front.client() as openai:
        asked = [asyncio.create_task(said(openai, f"{i} " * 20, 20, "slow")) for i in range(6)]
        await eventually(lambda: len(here.happened("add")) == before + 6)
        some(here.machines["left"], "slow").kill()
        assert await asyncio.gather(*asked) == [(whole(20), None)] * 6


@pytest.mark.parametrize("how", ["frozen", "unplugged"])
async def test_a_machine_is_silent_for_a_while(
    here: FarSite, front: Front, well: None, how: str
) -> None:  # SCALE-7
    left = here.machines["left"]
    begin, end = (left.freeze, left.thaw) if how == "frozen" else (left.unplug, left.plug_in)
    async with front.client() as openai:
        answers = Answers(400)
        await answers.begin(openai, 8)
        async with trickle(openai):
            silent = time.monotonic()
            begin()
            try:
                broken = await answers.broken()
                assert 0 < len(broken) < 8
                took = max(each.ended for each in broken) - silent
                note(f"machine {how}: its streams ended after", took)
                assert took < 3 + SLACK
                await asyncio.sleep(3)
            finally:
                end()
            back = time.monotonic()
            await both_answer(here, front)
            note(f"machine {how} for 6 s: it answers again after", time.monotonic() - back)


# SCALE-7
async def test_a_machine_is_unplugged_until_it_is_given_up(
    here: FarSite, front: Front, well: None
) -> None:
    left = here.machines["left"]
    async with front.client() as openai, trickle(openai, 1):
        silent = time.monotonic()
        left.unplug()
        try:
            await eventually(lambda: not is_there(front, left), 120)
            note("machine unplugged: given up by the cluster after", time.monotonic() - silent)
            await asyncio.to_thread(here.run_engines, "spare")
            joined = time.monotonic()
            await both_answer(here, front)
            note("machine has joined: its engines answer after", time.monotonic() - joined)
        finally:
            left.plug_in()
        back = time.monotonic()
        await asyncio.to_thread(here.nodes["left"].wait, 60)
        note("machine plugged in again, too late: its node ended after", time.monotonic() - back)
        await asyncio.to_thread(here.run_engines, "left")
        here.machines["spare"].turn_off()
        await eventually(lambda: len(left.replicas("talker")) == 1)


def is_there(front: Front, host: Host) -> bool:
    """Whether the cluster counts this machine in."""
    answer = front.get("/v1/cluster")
    assert answer.status_code == 200, answer.text
    nodes = answer.json()["nodes"]
    return any(node["alive"] and node["address"] == host.address for node in nodes)


# SCALE-5, SCALE-7
async def test_a_machine_is_turned_off(here: FarSite, front: Front, well: None) -> None:
    left = here.machines["left"]
    async with front.client() as openai:
        answers = Answers(400)
        await answers.begin(openai, 8)
        async with trickle(openai):
            off = time.monotonic()
            await asyncio.to_thread(left.turn_off)
            broken = await answers.broken()
            assert 0 < len(broken) < 8
            took = max(each.ended for each in broken) - off
            note("machine off: its streams ended after", took)
            assert took < 3 + SLACK
            on = time.monotonic()
            await asyncio.to_thread(here.run_engines, "left")
            note("machine on again: joined after", time.monotonic() - on)
            on = time.monotonic()
            await both_answer(here, front)
            note("machine has joined: its engines answer after", time.monotonic() - on)


# SCALE-13
async def test_options_of_a_model_change(here: FarSite, front: Front, well: None) -> None:
    before = len(here.happened("start"))
    async with front.client() as openai:
        answers = Answers(500)
        await answers.begin(openai, 6)
        async with trickle(openai):
            here.configure(models(here, step=0.03))
            begun = time.monotonic()
            reloaded = await asyncio.to_thread(front.post, "/v1/config/reload")
            assert reloaded.status_code == 200, reloaded.text
            assert await answers.broken() == []
            await eventually(lambda: has_new_engines(here, before, 0.03), 90)
            note("options changed: all engines new after", time.monotonic() - begun)
    times = [each["time"] for each in here.happened("start")[before:] if each["model"] == "talker"]
    note("between the two new engines of a model", max(times) - min(times))


def has_new_engines(here: FarSite, before: int, step: float) -> bool:
    started = here.happened("start")[before:]
    return [each["step"] for each in started] == [step] * 4


# SCALE-13
async def test_options_that_are_wrong(here: FarSite, front: Front, well: None) -> None:
    config = models(here, step=0.03)
    config[0] |= {"path": "/nowhere/to/be/found"}
    async with front.client() as openai:
        async with trickle(openai):
            here.configure(config)
            assert front.post("/v1/config/reload").status_code == 200
            await eventually(lambda: "no file or folder" in state_of_talker(front))
        here.configure(models(here))
        assert front.post("/v1/config/reload").status_code == 200
        await settled(here, front)
        assert await said(openai, "again", 3) == (whole(3), None)


def state_of_talker(front: Front) -> str:
    """What the server says of its first model."""
    return json.dumps(front.get("/v1/models").json()["data"][0])


# SCALE-17
async def test_no_more_run_than_engines_compute(here: FarSite, front: Front, well: None) -> None:
    before = len(here.happened("add", "end", "start"))
    async with front.client() as openai:
        asked = [asyncio.create_task(answer(openai, f"{i} " * 20, 150)) for i in range(110)]
        await eventually(lambda: most_running(here, before) >= 15)  # one slot is kept
        killed = time.time()
        some(here.machines["left"]).kill()
        answers = await asyncio.gather(*asked)
    lost = [each for each in answers if each.error]
    assert {getattr(each.error, "code", None) for each in lost} == {"engine_dead"}
    assert len(lost) <= 10
    running = of_each(here, before, killed)
    [new] = [e for e in here.happened("start") if e["time"] > killed and e["model"] == "talker"]
    meanwhile = [number for at, number in running if killed + 4 < at < new["time"]]
    assert 0 < max(meanwhile) <= 10
    again = next(at for at, number in running if at > new["time"] and number > 10)
    note("new engine: more run after", again - new["time"])
    assert again < new["time"] + 5 + SLACK


def most_running(here: FarSite, before: int) -> int:
    running = most = 0
    for each in here.happened("add", "end", "start")[before:]:
        running += {"add": 1, "end": -1, "start": 0}[each["event"]]
        most = max(most, running)
    return most


def of_each(here: FarSite, before: int, killed: float) -> list[tuple[float, int]]:
    """When how many ran in the engines that live, after one was killed on `left`."""
    running: dict[str, int] = {}
    counts = []
    for each in sorted(here.happened("add", "end", "start")[before:], key=lambda e: e["time"]):
        if each["model"] != "talker":
            continue
        key = each["host"] + ("" if each["time"] < killed or each["host"] != "left" else " new")
        running[key] = running.get(key, 0) + {"add": 1, "end": -1, "start": 0}[each["event"]]
        if each["time"] > killed:
            counts.append((each["time"], running.get("right", 0) + running.get("left new", 0)))
    return counts


# SCALE-15
async def test_strangers(here: FarSite, front: Front, well: None) -> None:
    stranger = here.network.host("stranger")
    wrong = here.folder / "wrong.token"
    for file, why in (("wrong.token", "refused the token"), ("missing.token", "no token")):
        joined = here.command(
            *("cluster", "join", here.address, "--host", stranger.address, "--token-file", file),
            host=stranger,
        )
        assert joined.returncode != 0
        assert why in joined.stderr
    told = here.command("cluster", "status", "--token-file", "wrong.token")
    assert told.returncode != 0
    assert f"refused the token in {wrong}" in told.stderr
    shown = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(wrong)}
    known = shown | {"RAY_AUTH_TOKEN_PATH": str(here.folder / "cluster.token")}
    for environment, lets_in in (({}, False), (shown, False), (known, True)):
        driven = here.python(DRIVER.format(address=here.address), **environment)
        assert (driven.returncode == 0) == lets_in, driven.stderr
        assert ("enginebay-talker" in driven.stdout) == lets_in
    assert not is_there(front, stranger)
    stranger.turn_off()


DRIVER = """
import ray
from ray import serve
ray.init(address="{address}")
print(list(serve.status().applications))
"""


# SCALE-15
async def test_a_server_with_a_wrong_token(here: FarSite, front: Front) -> None:
    here.configure(models(here), token_file="wrong.token")
    try:
        process = here.launch("serve", host=here.desk)
        here.wait(process, "^Model ")
        [told] = here.heard(process, "^Model +talker: (.*)")
        assert "refused the token" in told
    finally:
        here.configure(models(here))


# SCALE-20
async def test_what_status_tells(here: FarSite, front: Front, well: None) -> None:
    told = here.command("cluster", "status")
    for host in (here.head, here.desk, *here.machines.values()):
        assert not host.is_on or host.address in told.stdout
    as_json = json.loads(here.command("cluster", "status", "--json").stdout)
    assert {each["model"] for each in as_json["engines"]} == {"talker", "slow"}


# SCALE-14, SCALE-20
async def test_the_head_is_turned_off_and_on(here: FarSite, front: Front, well: None) -> None:
    async with front.client() as openai:
        answers = Answers(800)
        await answers.begin(openai, 8)
        async with trickle(openai):
            off = time.monotonic()
            await asyncio.to_thread(here.head.turn_off)
            asked = time.monotonic()
            told = await asyncio.to_thread(here.command, "cluster", "status")
            note("head off: `cluster status` says so after", time.monotonic() - asked)
            assert time.monotonic() < asked + 10 + SLACK
            assert told.returncode == 1
            assert "enginebay cluster up" in told.stderr
            await asyncio.sleep(max(0.0, off + 12 - time.monotonic()))
            here.head.boot()
            on = time.monotonic()
            await asyncio.to_thread(here.run_head)
            note("head on: runs after", time.monotonic() - on)
            await eventually(lambda: is_well(front), 60)
            note("head on: GET /v1/cluster answers after", time.monotonic() - on)
            assert await answers.broken() == []
            told = await asyncio.to_thread(here.command, "cluster", "status")
            assert told.returncode == 0, told.stderr
            killed = time.monotonic()
            some(here.machines["left"]).kill()
            await asyncio.sleep(1)
            await both_answer(here, front)
            note("head back, engine killed: the next one answers after", time.monotonic() - killed)


def is_well(front: Front) -> bool:
    return front.get("/v1/cluster").status_code == 200
