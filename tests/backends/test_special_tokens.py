"""`skip_special_tokens`, `allowed_token_ids` and bans, in both engines the same."""

import math
from pathlib import Path

import pytest

from demo.to_gguf import convert
from enginebay import InvalidRequestError
from enginebay.engine.batching.engine import BatchingEngine
from tests.backends import llamacpp, tiny
from tests.run import Run, request
from tests.support import DEMO_MODEL


@pytest.fixture(params=["hf", "llamacpp"])
def engine(request: pytest.FixtureRequest, tiny_llama: Path, tmp_path: Path) -> BatchingEngine:
    if request.param == "hf":
        return tiny.load(tiny_llama)
    convert(DEMO_MODEL, tmp_path / "demo.gguf", "f32")
    return llamacpp.load(tmp_path / "demo.gguf")


def special_and_plain(engine: BatchingEngine) -> tuple[int, int]:
    """A special token that ends nothing, and one that is none."""
    special = min(engine._special_token_ids - engine._eos_token_ids)
    return special, engine.tokenize("a", add_special_tokens=False)[-1]


@pytest.mark.parametrize("skip", [False, True])
def test_special_tokens_are_text_or_not(engine: BatchingEngine, skip: bool) -> None:
    special, plain = special_and_plain(engine)
    wanted = {"allowed_token_ids": (special, plain), "temperature": 50.0, "seed": 3}
    item = request([plain] * 3, max_tokens=24, logprobs=0, skip_special_tokens=skip, **wanted)
    run = Run(engine, item).finish()
    token_ids = run.token_ids()
    assert set(token_ids) == {special, plain}
    shown = [token for token in token_ids if not skip or token == plain]
    assert run.text() == engine.detokenize(shown)
    entries = [entry for delta in run.deltas["r", 0] for entry in delta.logprobs or ()]
    assert [entry.token_id for entry in entries] == token_ids  # REAL-5
    engine.close()


def test_texts_that_look_like_special_tokens(engine: BatchingEngine) -> None:
    special, _ = special_and_plain(engine)
    text = f"a{engine.detokenize([special])}b"
    recognised = engine.tokenize(text, add_special_tokens=True)
    plain = engine.tokenize_plain(text, add_special_tokens=True)
    assert special in recognised
    assert special not in plain
    assert engine.detokenize_plain(plain) == text
    without = engine.tokenize_plain("a", add_special_tokens=False)
    assert without == engine.tokenize("a", add_special_tokens=False)
    both = [special, *without]
    assert engine.detokenize_plain(both) == engine.detokenize(without)
    assert engine.tokenize(text, add_special_tokens=True) == recognised
    engine.close()


def test_bans(engine: BatchingEngine) -> None:
    item = request([5, 6, 7], max_tokens=6)
    said = Run(engine, item).finish().token_ids()
    banned = dict.fromkeys(said, -math.inf)
    assert not set(Run(engine, request([5, 6, 7], logit_bias=banned)).finish().token_ids()) & {
        *said
    }
    ends = tuple(engine._eos_token_ids)
    with pytest.raises(InvalidRequestError, match="min_tokens"):
        engine.add_request(request([5], allowed_token_ids=ends, min_tokens=2))
    with pytest.raises(InvalidRequestError, match="allowed_token_ids"):
        engine.add_request(request([5], allowed_token_ids=(10**6,)))
    engine.close()
