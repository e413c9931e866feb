"""What becomes of sampled tokens: text, stops, the end. The model is told what to say."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from enginebay_hf.engine import HFEngine
from tests.backends.conftest import assert_empty
from tests.backends.tiny import EOS, PROMPTS, TOOL_CALL, VOCAB_SIZE, Run, request


@pytest.fixture
def say(engine: HFEngine, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[int]], HFEngine]:
    """`say(token_ids)`: the model prefers these tokens, one after another, in every row."""

    def start(token_ids: list[int]) -> HFEngine:
        run = engine._runner.run

        def say(chunks: Any) -> torch.Tensor:
            logits = torch.zeros(len(run(chunks)), VOCAB_SIZE)
            ends = [c.start + len(c.token_ids) for c in chunks if c.logits]
            for row, end in enumerate(ends):
                logits[row, token_ids[(end - len(PROMPTS[0])) % len(token_ids)]] = 10.0
            return logits

        monkeypatch.setattr(engine._runner, "run", say)
        return engine

    return start


def tokens_of(engine: HFEngine, text: str) -> list[int]:
    return engine.tokenize(text, add_special_tokens=False)


def said(engine: HFEngine, **sampling: Any) -> Run:
    return Run(engine, request(PROMPTS[0], **{"ignore_eos": False, **sampling})).finish()


def test_eos_ends_without_text_or_logprob(say: Any) -> None:
    engine = say([75, 76, EOS, 77])
    run = said(engine, logprobs=0)
    assert run.token_ids() == [75, 76, EOS]
    assert run.text() == engine.detokenize([75, 76])
    assert (run.last().finish_reason, run.last().stop_reason) == ("stop", None)
    entries = [entry.token_id for delta in run.deltas["r", 0] for entry in delta.logprobs or ()]
    assert entries == [75, 76]


def test_ignored_eos_goes_on_and_still_has_no_text(say: Any) -> None:
    engine = say([75, EOS, 76])
    run = said(engine, ignore_eos=True, max_tokens=5, logprobs=0)
    assert run.token_ids() == [75, EOS, 76, 75, EOS]
    assert run.text() == engine.detokenize([75, 76, 75])
    assert run.last().finish_reason == "length"


def test_other_special_tokens_are_text_if_asked(say: Any) -> None:
    """REAL-5."""
    run = said(say([75, TOOL_CALL, 76, EOS]), skip_special_tokens=False)
    assert "<tool_call>" in run.text()
    assert "<tool_call>" not in said(say([75, TOOL_CALL, 76, EOS])).text()


def test_stop_token_id_ends_without_text(say: Any) -> None:
    engine = say([75, TOOL_CALL, 76])
    run = said(engine, stop_token_ids=(TOOL_CALL,), logprobs=0)
    assert run.token_ids() == [75, TOOL_CALL]
    assert run.text() == engine.detokenize([75])
    assert (run.last().finish_reason, run.last().stop_reason) == ("stop", TOOL_CALL)


def test_stop_string_over_token_borders_never_shows(engine: HFEngine, say: Any) -> None:
    token_ids = tokens_of(engine, "the quick brown fox jumps")
    engine = say(token_ids)
    run = said(engine, stop=("own fo", "never"), max_tokens=30, logprobs=0)
    assert run.text() == "the quick br"
    assert (run.last().finish_reason, run.last().stop_reason) == ("stop", "own fo")
    assert not any("own" in delta.text for delta in run.deltas["r", 0])
    entries = [entry for delta in run.deltas["r", 0] for entry in delta.logprobs or ()]
    kept = "".join(entry.token for entry in entries)
    assert kept.startswith("the quick br")
    assert "".join(entry.token for entry in entries[:-1]) in "the quick br"
    assert_empty(engine)


def test_a_held_back_beginning_of_a_stop_string_comes_out_at_the_end(
    engine: HFEngine, say: Any
) -> None:
    token_ids = tokens_of(engine, "the quick")
    run = said(say(token_ids), stop=("quickly",), max_tokens=len(token_ids), logprobs=0)
    assert run.text() == "the quick"
    assert run.last().finish_reason == "length"
    entries = [entry.token_id for delta in run.deltas["r", 0] for entry in delta.logprobs or ()]
    assert entries == token_ids


def test_characters_over_token_borders_are_whole(engine: HFEngine, say: Any) -> None:
    text = "naïve 😀 日本"
    token_ids = tokens_of(engine, text)
    assert len(token_ids) > len(text)
    run = said(say(token_ids), max_tokens=len(token_ids), logprobs=0)
    assert run.text() == text
    assert not any("\ufffd" in delta.text for delta in run.deltas["r", 0])
    entries = [entry.token_id for delta in run.deltas["r", 0] for entry in delta.logprobs or ()]
    assert entries == token_ids


def test_a_token_that_a_stop_string_cuts_off_has_no_logprob(say: Any) -> None:
    engine = say([75, 76, 77, 78])
    run = said(engine, stop=(engine.detokenize([76, 77]),), logprobs=0)
    assert run.text() == engine.detokenize([75])
    assert run.token_ids() == [75, 76, 77]
    entries = [entry.token_id for delta in run.deltas["r", 0] for entry in delta.logprobs or ()]
    assert entries == [75]


def test_a_token_without_text_has_a_logprob(say: Any) -> None:
    unknown = VOCAB_SIZE - 1  # models have more rows than their tokenizer has tokens
    engine = say([75, unknown])
    assert engine.detokenize([unknown]) == ""
    run = said(engine, max_tokens=2, logprobs=0)
    entries = [entry.token_id for delta in run.deltas["r", 0] for entry in delta.logprobs or ()]
    assert entries == [75, unknown]


def test_an_unfinished_character_is_not_lost(engine: HFEngine, say: Any) -> None:
    token_ids = tokens_of(engine, "a😀")[:-1]
    run = said(say([*token_ids, EOS]))
    assert run.text() == engine.detokenize(token_ids)
    assert run.text().endswith("\ufffd")


def test_joined_text_is_the_decoded_completion(engine: HFEngine) -> None:
    run = Run(engine, request(PROMPTS[1], n=4, temperature=2.0, seed=1, max_tokens=60)).finish()
    for index in range(4):
        token_ids = [token for token in run.token_ids(index=index) if token != EOS]
        assert run.text(index=index) == engine.detokenize(token_ids)


def test_min_tokens_holds_off_eos_and_stop_tokens(say: Any) -> None:
    engine = say([EOS])
    run = said(engine, min_tokens=4)
    assert len(run.token_ids()) == 5
    assert run.token_ids().index(EOS) == 4
    engine = say([TOOL_CALL])
    run = said(engine, min_tokens=2, stop_token_ids=(TOOL_CALL,))
    assert run.token_ids().index(TOOL_CALL) == 2


def test_min_tokens_does_not_forbid_an_ignored_eos(say: Any) -> None:
    run = said(say([EOS]), min_tokens=4, ignore_eos=True, max_tokens=3)
    assert run.token_ids() == [EOS] * 3


def test_min_tokens_holds_off_stop_strings(engine: HFEngine, say: Any) -> None:
    token_ids = tokens_of(engine, "=") * 6
    run = said(say(token_ids), stop=("=",), min_tokens=3)
    assert run.text() == "=="
    assert len(run.token_ids()) == 3
    assert run.last().stop_reason == "="


@pytest.mark.parametrize(("asked", "given"), [(1, 1), (7, 7), (None, 253), (10_000, 253)])
def test_max_tokens_is_clamped_to_the_context(engine: HFEngine, asked: Any, given: int) -> None:
    run = Run(engine, request(PROMPTS[0], max_tokens=asked)).finish()
    assert len(run.token_ids()) == given
    assert run.last().finish_reason == "length"
    assert [d.finish_reason for d in run.deltas["r", 0][:-1]] == [None] * (given - 1)


def test_the_longest_prompt_has_room_for_one_token(engine: HFEngine) -> None:
    run = Run(engine, request([9] * 255, max_tokens=None)).finish()
    assert len(run.token_ids()) == 1
