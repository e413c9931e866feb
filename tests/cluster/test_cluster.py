"""A cluster of two nodes, two engines of each model and a server, as a user starts them.

About 40 s on two cores; the thorough tests beside this file end nodes, heads and servers.
"""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any

import psutil
import pytest
from openai import AsyncOpenAI

from tests.cluster.asking import chats, said, whole
from tests.cluster.site import ANNA, BOB, PLUGINS, Front, Site, replicas, site, until

NEAR: dict[str, Any] = {"backend": "talker", "path": str(PLUGINS)}
PLACED: dict[str, Any] = {"engine": "talker", "replicas": 2, "per_node": 1, "cpus": 0.1}
FAR = NEAR | {"backend": "cluster"}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("site")) as here:
        talker = PLACED | {"options": {"log": str(here.events)}}
        slow = PLACED | {"options": talker["options"] | {"prefill": 0.5}}
        here.configure(
            [
                FAR | {"name": "talker", "options": talker},
                FAR | {"name": "slow", "options": slow, "max_running": 6},
                NEAR | {"name": "near", "options": {}},
            ],
            share_limits=True,
        )
        here.up(1, "--cpus", "2")
        yield here


@pytest.fixture(scope="module")
def fronts(here: Site) -> list[Front]:
    return here.fronts(2)


@pytest.fixture(scope="module")
def front(fronts: list[Front]) -> Front:
    return fronts[0]


async def test_answers_are_those_of_an_engine_of_this_machine(front: Front) -> None:  # SCALE-2
    def of(model: str) -> Any:
        body = {"model": model, "prompt": ["one", "two"], "n": 2, "max_tokens": 5, "logprobs": None}
        answer = front.post("/v1/completions", body).json()
        del answer["usage"]["extra"]
        return [answer[key] for key in ("object", "choices", "usage")]

    assert of("talker") == of("near")
    assert front.post("/v1/completions", {"model": "talker", "prompt": ""}).status_code == 400
    cards = {card["id"]: card for card in front.get("/v1/models").json()["data"]}
    for card in cards.values():
        for own in ("id", "created", "memory_bytes", "backend"):
            card.pop(own, None)
    assert cards["talker"].keys() == cards["near"].keys()


async def test_a_chat_stays_with_the_engine_that_knows_it(front: Front) -> None:  # SCALE-3
    async with front.client() as openai:
        usages = await chats(openai, 8, 4)
    found = [
        later.prompt_tokens_details.cached_tokens >= before.prompt_tokens
        for chat in usages
        for before, later in pairwise(chat)
    ]
    assert sum(found) >= 0.9 * len(found)


async def test_a_prefix_that_all_share_draws_no_crowd(here: Site, front: Front) -> None:  # SCALE-4
    before = len(here.happened("add"))
    shared = "You are a helpful assistant. " * 40
    async with front.client() as openai:
        await asyncio.gather(*(said(openai, f"{shared}{i}", 40) for i in range(16)))
    counts = Counter(each["pid"] for each in here.happened("add")[before:])
    assert sum(counts.values()) == 16
    assert max(counts.values()) <= 12


async def test_a_client_that_leaves_frees_its_engine(here: Site, front: Front) -> None:  # SCALE-8
    async with front.client() as openai:
        stream = await openai.chat.completions.create(
            model="talker",
            messages=[{"role": "user", "content": "x"}],
            stream=True,
            max_tokens=90_000,
        )
        await anext(aiter(stream))
        [added] = here.happened("add")[-1:]
        await stream.close()
    await until(lambda: added["id"] in [each["id"] for each in here.happened("abort")])


@pytest.mark.parametrize("asked", [0, 1])
async def test_a_request_is_cancelled_by_its_id_at_any_server(  # SCALE-9
    here: Site, fronts: list[Front], asked: int
) -> None:
    async with fronts[0].client() as openai:
        stream = await openai.completions.create(
            model="talker", prompt="x", stream=True, max_tokens=90_000
        )
        first = await anext(aiter(stream))
        assert first.id in fronts[asked].get("/v1/requests").text
        assert fronts[asked].post(f"/v1/requests/{first.id}/cancel").status_code == 200
        reasons = [chunk.choices[0].finish_reason async for chunk in stream if chunk.choices]
    assert reasons[-1] == "abort"
    added = here.happened("add")[-1]
    await until(lambda: added["id"] in [each["id"] for each in here.happened("abort")])


async def test_limits_of_a_key_hold_for_all_servers(fronts: list[Front]) -> None:  # SCALE-10
    async def refused(key: str, requests: int, tokens: int) -> int:
        async def one(openai: AsyncOpenAI) -> bool:
            _, error = await said(openai, "x", tokens)
            assert error is None or error.code == "rate_limit_exceeded"
            return error is not None

        async with fronts[0].client(key) as first, fronts[1].client(key) as second:
            asked = [one([first, second][i % 2]) for i in range(requests)]
            return sum(await asyncio.gather(*asked))

    assert await refused(ANNA, 12, 1) == 12 - 5
    assert await refused(BOB, 6, 200) == 6 - 2


async def test_turns_are_taken_for_all_servers(here: Site, fronts: list[Front]) -> None:  # SCALE-11
    before = len(here.happened("add", "end"))
    async with fronts[0].client() as first, fronts[1].client() as second:
        results = await asyncio.gather(
            *(said([first, second][i % 2], f"{i}", 30, "slow") for i in range(24))
        )
    assert results == [(whole(30), None)] * 24
    running = most = 0
    for each in sorted(here.happened("add", "end")[before:], key=lambda each: each["time"]):
        running += 1 if each["event"] == "add" else -1
        most = max(most, running)
    assert (most, running) == (5, 0)  # one slot is kept: SEC-10


async def test_what_engines_tell_is_added_up(here: Site, front: Front) -> None:  # SCALE-19
    await until(front.all_engines_are_ready)
    async with front.client() as openai:
        await asyncio.gather(*(said(openai, f"{i} " * 20, 20) for i in range(8)))
    alive = {each.pid for each in replicas("talker")}
    added = [each for each in here.happened("add") if each["pid"] in alive]
    assert len({each["pid"] for each in added}) == 2
    total = sum(each["prompt"] for each in added)
    # Engines report once a second.
    await until(lambda: of_talker(front, "prefix_cache_queries_total") == total)
    told = front.get("/v1/cluster").json()
    engines = [each for each in told["engines"] if each["model"] == "talker"]
    assert {each["state"] for each in engines} == {"ready"}
    assert len({each["node"] for each in engines}) == 2
    least = min(each["ram"] for each in engines)
    assert of_talker(front, "model_memory_bytes", kind="ram") > 1.5 * least


def of_talker(front: Front, name: str, **labels: str) -> float:
    """A metric of the model."""
    wanted = {"model_name": "talker"} | labels
    [line] = [
        line
        for line in front.get("/metrics").text.splitlines()
        if line.startswith(f"enginebay:{name}{{")
        and all(f'{key}="{value}"' in line for key, value in wanted.items())
    ]
    return float(line.split()[-1])


async def test_what_has_said_nothing_moves_to_another_engine(  # SCALE-6
    here: Site, front: Front
) -> None:
    before = len(here.happened("add"))
    async with front.client() as openai:
        asked = [asyncio.create_task(said(openai, f"{i} " * 20, 20, "slow")) for i in range(6)]
        await until(lambda: len(here.happened("add")) == before + 6)
        os.kill(replicas("slow")[0].pid, signal.SIGKILL)
        assert await asyncio.gather(*asked) == [(whole(20), None)] * 6


async def test_streams_of_an_engine_that_dies_fail_and_others_go_on(  # SCALE-5
    front: Front,
) -> None:
    begun = [asyncio.Event() for _ in range(8)]
    async with front.client() as openai:
        asked = [
            asyncio.create_task(said(openai, f"{i} " * 20, 400, begun=each))
            for i, each in enumerate(begun)
        ]
        await asyncio.gather(*(each.wait() for each in begun))
        os.kill(replicas("talker")[0].pid, signal.SIGKILL)
        assert await said(openai, "meanwhile", 3) == (whole(3), None)
        results = await asyncio.gather(*asked)
    broken = [error for _, error in results if error]
    assert 0 < len(broken) < 8
    assert {getattr(error, "code", None) for error in broken} == {"engine_dead"}
    assert all(whole(400).startswith(text) for text, _ in results)
    assert all(text == whole(400) for text, error in results if not error)
    await until(lambda: len(replicas("talker")) == 2)


def test_it_fits_a_small_machine(here: Site) -> None:  # SCALE-21
    """Nodes, servers and engines; memory that processes share counts once."""
    total = 0
    for process in here.processes():
        with suppress(psutil.Error):  # it has ended meanwhile
            total += process.memory_full_info().pss
    assert 0 < total < 2 << 30
