"""The first minute of an engine on a device: whether it loads, streams, computes what it should."""

import json
from collections.abc import Callable
from time import perf_counter

import pytest

from enginebay.testing import check_backend
from tests.gpu.conftest import MODEL, PATIENCE, create
from tests.gpu.models import Models
from tests.gpu.parity import Reference
from tests.gpu.targets import FIRST, Target, params
from tests.gpu.test_texts import MESSAGES, STORIES, TOKENS, complete, judge
from tests.support import Server

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.parametrize("target", params(FIRST), indirect=True),
]
Record = Callable[[str, object], None]
SOME = MESSAGES[:6]


def test_one_stream(
    server: Server, target: Target, reference: Reference, record_property: Record
) -> None:
    expected = reference.answer(SOME[0], TOKENS)
    body = {"model": MODEL, "prompt": expected.prompt, "max_tokens": TOKENS, "temperature": 0}
    said, arrivals, ended = "", [], False
    start = perf_counter()
    with server.http.stream(
        "POST", "/v1/completions", json={**body, "stream": True}, timeout=PATIENCE
    ) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if line == "data: [DONE]":
                ended = True
            elif line.startswith("data: "):
                arrivals.append(perf_counter() - start)
                said += json.loads(line[6:])["choices"][0]["text"]
    assert ended
    record_property("seconds to the first event", round(arrivals[0], 3))
    record_property("events", len(arrivals))
    record_property("tokens of the reference", expected.agreement(said, target.bound))
    assert said


async def test_greedy_texts(
    server: Server, target: Target, reference: Reference, record_property: Record
) -> None:
    expected = [reference.answer(message, TOKENS) for message in SOME]
    choices = [choice for answer in expected for choice in await complete(server, MODEL, answer)]
    judge(target, expected, [choice.text for choice in choices], record_property)


async def test_greedy_texts_at_once(
    server: Server, target: Target, reference: Reference, record_property: Record
) -> None:
    expected = [reference.answer(message, TOKENS) for message in SOME]
    choices = await complete(server, MODEL, *expected)
    judge(target, expected, [choice.text for choice in choices], record_property)


async def test_the_contract_holds(target: Target, models: Models) -> None:
    await check_backend(lambda: create(target, models), prompt=STORIES[0], timeout=40)
