"""Whatever comes together in little memory: answers as alone, and a page table that is whole."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from enginebay import GenerationRequest
from enginebay.contract.grammar import Pattern
from tests.backends.exllamav2_loading import LoadExLlamaV2
from tests.backends.exllamav2_loading import load_exllamav2 as load_exllamav2
from tests.backends.test_exllamav2_engine import TEXTS, assert_empty
from tests.run import Run, request
from tests.support import DEMO_MODEL

KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"constraint": Pattern("[0-9]{5,20}")},
    {"banned_strings": ("the", "city")},
    {"token_healing": True},
    {"logprobs": 0},
)


def random_request(random: Random, prompts: list[list[int]], number: int) -> GenerationRequest:
    prompt = (random.choice(prompts) * 20)[: random.choice((5, 30, 240, 255, 256, 257, 300))]
    length = random.choice((1, 5, 40))
    item = request(prompt, id=str(number), max_tokens=length, **random.choice(KINDS))
    salt, priority = random.choice((None, "a", "b")), random.choice((0, 0, 1))
    return replace(item, n=random.choice((1, 1, 2)), cache_salt=salt, priority=priority)


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{"max_batch_size": 8}, {"prompt_lookup": 3}], ids=str)
def test_traffic(load_exllamav2: LoadExLlamaV2, options: dict[str, Any]) -> None:
    engine = load_exllamav2(
        DEMO_MODEL, cache_tokens=1024, context_length=512, prefill_tokens=256, **options
    )
    generator = engine._scheduler.generator
    # The library has this check of its pages, but switched off.
    whole = generator._ExLlamaV2DynamicGenerator___validate_cache
    prompts = [engine.tokenize(text, add_special_tokens=False) for text in TEXTS]
    random = Random(7)
    run, items = Run(engine), {}
    for number in range(12):
        item = items[str(number)] = random_request(random, prompts, number)
        run.add(item)
        for _ in range(random.randrange(6)):
            run.steps(1)
            whole()
        if random.random() < 0.2:
            gone = random.choice(list(items))
            run.abort(gone)
            del items[gone]
    run.finish()
    whole()
    assert_empty(engine)
    for id, item in items.items():
        deltas = [delta for index in range(item.n) for delta in run.deltas[id, index]]
        accounted = sum(delta.prefill_tokens + delta.cached_tokens for delta in deltas)
        assert accounted == len(item.prompt_token_ids)
        alone = Run(engine, replace(item, n=1, cache_salt=f"alone {id}")).finish()
        for index in range(item.n):
            assert run.token_ids(id, index) == alone.token_ids(id)
            assert run.text(id, index) == alone.text(id)
