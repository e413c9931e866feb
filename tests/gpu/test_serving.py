"""Engines on the device keep the contract, hold answers to grammars, and bear load and aborts."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from enginebay.plugins import Plugins
from enginebay.testing import check_backend
from tests.constrained import (
    BOOKING,
    SCHEMAS,
    SHORT_THOUGHT,
    answers,
    check_calls,
    check_json,
    finished,
    tools,
)
from tests.gpu.conftest import MODEL, PATIENCE, config, create
from tests.gpu.models import Models
from tests.gpu.parity import Reference
from tests.gpu.targets import MAIN, SIZES, Target, device, params
from tests.support import Server, serve

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.parametrize("target", params(MAIN), indirect=True),
]
Record = Callable[[str, object], None]
SEEDS = 16
STORY = "Tell me a story about a train."


async def test_the_contract_holds(target: Target, models: Models) -> None:
    await check_backend(lambda: create(target, models), prompt=STORY)


@pytest.mark.parametrize("strict", [True, False])
async def test_answers_of_a_schema(server: Server, strict: bool, record_property: Record) -> None:
    json_schema = {"name": "booking", "schema": BOOKING, "strict": strict}
    response_format = {"type": "json_schema", "json_schema": json_schema}
    choices = await answers(
        server, MODEL, SEEDS, response_format=response_format, extra_body=SHORT_THOUGHT
    )
    whole = finished(choices)
    record_property("answers", len(choices))
    record_property("answers that came to an end", len(whole))
    for choice in whole:
        check_json(choice, BOOKING)


async def test_required_calls(server: Server, record_property: Record) -> None:
    choices = await answers(
        server,
        MODEL,
        SEEDS,
        tools=tools(),
        tool_choice="required",
        parallel_tool_calls=False,
        extra_body=SHORT_THOUGHT,
    )
    whole = finished(choices)
    record_property("answers", len(choices))
    record_property("answers that came to an end", len(whole))
    for choice in whole:
        assert choice.finish_reason == "tool_calls"
        check_calls(choice, list(SCHEMAS))


def test_thought_ends_at_the_budget(server: Server) -> None:
    def answer(**body: Any) -> Any:
        return server.openai.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "What is 123 + 456?"}],
            temperature=0,
            max_tokens=60,
            extra_body={"enable_thinking": True, **body},
        )

    free, short = answer(), answer(reasoning_budget=4)
    spent = short.usage.completion_tokens_details.reasoning_tokens
    assert spent == 5  # and the tag
    assert free.usage.completion_tokens_details.reasoning_tokens > spent
    assert short.choices[0].message.content


async def test_requests_are_aborted_while_queued_and_while_decoding(
    server: Server, target: Target, reference: Reference
) -> None:
    endless = {"max_tokens": SIZES["context_length"] - 100, "extra_body": {"ignore_eos": True}}
    async with server.async_openai() as unhurried:
        client = unhurried.with_options(timeout=PATIENCE)

        async def begin() -> Any:
            return await client.completions.create(
                model=MODEL, prompt=STORY, stream=True, temperature=0, **endless
            )

        asking = [asyncio.create_task(begin()) for _ in range(SIZES["max_batch_size"] + 8)]
        decoding, _ = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        for task in asking:
            task.cancel()  # of those that are not done, some decode by now and some are queued
        await asyncio.gather(*asking, return_exceptions=True)
        for task in decoding:
            await task.result().close()
    expected = reference.answer(STORY, 16)
    completion = server.openai.completions.create(
        model=MODEL, prompt=expected.prompt, max_tokens=16, temperature=0
    )
    assert expected.agreement(completion.choices[0].text, target.bound) >= 1
    assert server.http.get("/health").json()["state"] == "ok"


async def test_load_of_all_kinds(
    server: Server, target: Target, reference: Reference, record_property: Record
) -> None:
    """96 requests of random sizes, 24 at a time, every fourth closed before its end."""
    chosen = random.Random(1)
    prompt = reference.prompt(STORY)
    turns = asyncio.Semaphore(24)
    tokens = 0
    async with server.async_openai() as unhurried:
        client = unhurried.with_options(timeout=PATIENCE)

        async def one(number: int) -> None:
            nonlocal tokens
            body: dict[str, Any] = {
                "prompt": chosen.choices(prompt, k=chosen.randint(1, 1200)),
                "max_tokens": chosen.randint(1, 100),
                "temperature": chosen.choice([0.0, 0.7, 1.5]),
                "top_p": chosen.choice([1.0, 0.9]),
                "seed": number,
                "extra_body": {"ignore_eos": True},
            }
            async with turns:
                stream = await client.completions.create(
                    model=MODEL, stream=True, stream_options={"include_usage": True}, **body
                )
                async with stream:
                    async for chunk in stream:
                        if number % 4 == 0:
                            return
                        if chunk.usage:
                            assert chunk.usage.prompt_tokens == len(body["prompt"])
                            assert chunk.usage.completion_tokens == body["max_tokens"]
                            tokens += chunk.usage.completion_tokens

        await asyncio.gather(*map(one, range(96)))
    record_property("completion tokens", tokens)
    expected = reference.answer(STORY, 16)
    completion = server.openai.completions.create(
        model=MODEL, prompt=expected.prompt, max_tokens=16, temperature=0
    )
    assert expected.agreement(completion.choices[0].text, target.bound) >= 1


def test_memory_of_the_device_is_taken_and_given_back(
    target: Target, models: Models, record_property: Record
) -> None:
    if device() == "cpu":
        pytest.skip("a rehearsal has no device")
    torch.cuda.init()
    before = torch.cuda.mem_get_info()[0]
    with serve(config(target, models), Plugins()):
        taken = before - torch.cuda.mem_get_info()[0]
    left = before - torch.cuda.mem_get_info()[0]
    record_property("MiB taken", taken // 2**20)
    record_property("MiB not given back", left // 2**20)
    assert taken > 9 * 2**20  # the weights in 16 bits
    assert left < 64 * 2**20
