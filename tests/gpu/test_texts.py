"""What engines on the device say is what transformers says in float32 on the CPU."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.gpu.conftest import ADAPTER, MODEL, PATIENCE, References
from tests.gpu.models import Models
from tests.gpu.parity import Continuation, Reference
from tests.gpu.targets import MAIN, VARIANTS, Target, params
from tests.support import Server

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.parametrize("target", params(MAIN + VARIANTS), indirect=True),
]
Record = Callable[[str, object], None]

TOKENS = 48
LONG = "Tell me a story about a train. " * 40  # several chunks of prefill, pages of keys and values
STORIES = [
    f"Tell me a story about {thing}."
    for thing in ("a train", "a dog", "the moon", "a king", "a ship", "a cat", "rain", "a fox")
]
MESSAGES = [
    "Hello!",
    "What is Enginebay?",
    "What is the capital of France?",
    "What is 7 + 5?",
    "Count to ten.",
    "Write a poem about the sea.",
    "How do I start the server?",
    LONG,
    *STORIES,
]


async def complete(server: Server, model: str, *answers: Continuation, **body: Any) -> list[Any]:
    """The greedy choices behind the reference's prompts, all at the same time."""
    async with server.async_openai() as unhurried:
        client = unhurried.with_options(timeout=PATIENCE)
        replies = await asyncio.gather(
            *(
                client.completions.create(
                    model=model,
                    prompt=answer.prompt,
                    max_tokens=TOKENS,
                    temperature=0,
                    **body,
                )
                for answer in answers
            )
        )
    return [reply.choices[0] for reply in replies]


def judge(target: Target, expected: list[Continuation], texts: list[str], record: Record) -> None:
    """All texts are as near to the reference as the target has to be, and most are the same."""
    pairs = zip(expected, texts, strict=True)
    agreed = [answer.agreement(text, target.bound) for answer, text in pairs]
    record("tokens of the reference", sum(agreed))
    record("tokens in all", sum(len(answer.token_ids) for answer in expected))
    record("texts of the reference", sum(a.text == t for a, t in zip(expected, texts, strict=True)))
    record("texts in all", len(texts))
    assert sum(agreed) >= sum(len(answer.token_ids) for answer in expected) / 2


async def test_greedy_texts_are_those_of_the_reference(
    server: Server, target: Target, reference: Reference, record_property: Record
) -> None:
    expected = [reference.answer(message, TOKENS) for message in MESSAGES]
    choices = [choice for a in expected for choice in await complete(server, MODEL, a)]
    judge(target, expected, [choice.text for choice in choices], record_property)
    for answer, choice in zip(expected, choices, strict=True):
        if choice.text == answer.text:
            assert choice.finish_reason == ("stop" if answer.complete else "length")


async def test_sixteen_texts_at_once_are_those_of_the_reference(
    server: Server, target: Target, reference: Reference, record_property: Record
) -> None:
    expected = [reference.answer(message, TOKENS) for message in MESSAGES]
    assert len(expected) == 16
    choices = await complete(server, MODEL, *expected)
    judge(target, expected, [choice.text for choice in choices], record_property)


async def test_logprobs_are_those_of_the_reference(
    server: Server, target: Target, reference: Reference, record_property: Record
) -> None:
    expected = [reference.answer(message, TOKENS) for message in MESSAGES]
    choices = await complete(
        server,
        MODEL,
        *expected,
        logprobs=1,
        extra_body={"return_tokens_as_token_ids": True},
    )
    furthest, compared = 0.0, 0
    for answer, choice in zip(expected, choices, strict=True):
        token_ids = [int(token.removeprefix("token_id:")) for token in choice.logprobs.tokens]
        if answer.complete and choice.finish_reason == "stop":
            token_ids = token_ids[: len(token_ids) - (len(token_ids) > len(answer.token_ids))]
        same = answer.token_agreement(token_ids, target.bound)
        pairs = zip(answer.logprobs, choice.logprobs.token_logprobs[:same], strict=False)
        furthest = max([furthest, *(abs(ours - theirs) for ours, theirs in pairs)])
        compared += same
    record_property("largest difference of a logprob", furthest)
    record_property("logprobs compared", compared)
    assert compared >= sum(len(answer.token_ids) for answer in expected) / 2
    assert furthest <= target.bound


async def test_an_adapter_changes_the_texts_of_those_who_ask_for_it(
    server: Server,
    target: Target,
    reference: Reference,
    models: Models,
    references: References,
    record_property: Record,
) -> None:
    if target.model == "gptq":
        pytest.skip("the adapter is for the model that is not quantised")
    adapted: Reference = references[models.merged]
    plain = [reference.answer(message, TOKENS) for message in STORIES]
    changed = [adapted.answer(message, TOKENS) for message in STORIES]
    assert all(a.text != b.text for a, b in zip(plain, changed, strict=True))
    together = await asyncio.gather(
        complete(server, MODEL, *plain), complete(server, ADAPTER, *changed)
    )
    texts = [choice.text for choices in together for choice in choices]
    judge(target, plain + changed, texts, record_property)
