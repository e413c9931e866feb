"""With drafts llama.cpp computes what it computes without, but for rounding. ENG-7."""

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

from demo.to_gguf import convert
from enginebay import TokenLogprob
from tests.backends.llamacpp import LlamaCppEngine, load, request
from tests.drafting import drafts_pay
from tests.run import Run
from tests.support import DEMO_MODEL

ROUNDING = 0.1
"""Of logprobs, in f16: the largest seen is 0.045, with drafts as well as without, by how many
choices are in a pass."""

LAYOUTS: dict[str, dict[str, Any]] = {
    "unified": {"kv_unified": True},
    "separate": {"kv_unified": False, "context_length": 256, "max_batch_size": 8},
}
DRAFTS = ("prompt_lookup", "draft_model", "prediction")
TOKENS = 40


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("gguf") / "demo.gguf"
    convert(DEMO_MODEL, target, "f16")
    return target


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Of any tokens, so that many of the next ones are about as likely; every third goes round."""
    made = []
    for number in range(12):
        prompt = [300 + (number * 7919 + at * 104729) % 2600 for at in range(3 + 7 * number)]
        made.append(prompt[:8] * (1 + number) if number % 3 == 0 else prompt)
    return made


@pytest.fixture(scope="module")
def alone(gguf: Path, prompts: list[list[int]]) -> Iterator[list[list[TokenLogprob]]]:
    """What is said without drafts, one prompt after the other."""
    engine = load(gguf, kv_unified=True)
    yield [said(engine, [prompt])[0] for prompt in prompts]
    engine.close()


def said(
    engine: LlamaCppEngine, prompts: list[list[int]], predicted: list[list[int]] | None = None
) -> list[list[TokenLogprob]]:
    """The tokens of answers that are made together, with the two likeliest of each place."""
    items = [
        request(prompt, id=str(number), max_tokens=TOKENS, logprobs=2, ignore_eos=True)
        for number, prompt in enumerate(prompts)
    ]
    if predicted:
        items = [
            replace(item, predicted_token_ids=tuple(token_ids))
            for item, token_ids in zip(items, predicted, strict=True)
        ]
    run = Run(engine, *items).finish()
    assert not run.errors
    return [
        [entry for delta in run.deltas[item.request_id, 0] for entry in delta.logprobs or ()]
        for item in items
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("drafts", DRAFTS)
def test_drafts_change_only_what_rounding_decides(
    gguf: Path,
    prompts: list[list[int]],
    alone: list[list[TokenLogprob]],
    layout: str,
    drafts: str,
) -> None:
    options: dict[str, Any] = {
        "prompt_lookup": {"prompt_lookup": 6},
        "draft_model": {"draft_model": str(gguf), "draft_tokens": 3},
        "prediction": {},
    }[drafts]
    engine = load(gguf, **LAYOUTS[layout], **options)
    drafts_pay(engine)
    for start in range(0, len(prompts), 4):
        some = slice(start, start + 4)
        predicted = [
            [entry.token_id + (at % 9 == 8) for at, entry in enumerate(entries)]
            for entries in alone[some]
        ]
        answers = said(engine, prompts[some], predicted if drafts == "prediction" else None)
        for expected, actual in zip(alone[some], answers, strict=True):
            compare(expected, actual)
    stats = engine.stats()
    assert (stats.drafted or 0) > (stats.accepted or 0) > TOKENS or drafts == "draft_model"
    assert (stats.accepted or 0) > TOKENS
    engine.close()


def compare(expected: list[TokenLogprob], actual: list[TokenLogprob]) -> None:
    """Equal up to a place where two tokens are as good as equally likely, if there is one."""
    for want, got in zip(expected, actual, strict=False):
        likely = {entry.token_id: entry.logprob for entry in want.top}
        for entry in got.top:
            if entry.token_id in likely:
                assert entry.logprob == pytest.approx(likely[entry.token_id], abs=ROUNDING)
        if got.token_id != want.token_id:
            assert want.logprob - likely.get(got.token_id, -inf) < ROUNDING
            return
    assert len(expected) == len(actual)
