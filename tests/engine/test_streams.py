"""Deltas that piled up while a client was slow."""

import pytest

from core.chat.answer.logprobs import LOWEST, finite
from core.engine.streams import _merge
from enginebay import ContentDelta, Delta, Prefill, ReasoningDelta, TokenLogprob


def test_deltas_with_logprobs_keep_their_place() -> None:
    """Those of a chat have them only where there is content."""
    first, last = Delta(parts=(ReasoningDelta("a"),)), Delta(finish_reason="stop")
    content = Delta(parts=(ContentDelta("b"),), logprobs=(TokenLogprob(-1, "b", -0.5),))
    other = Delta(index=1, parts=(ContentDelta("c"),))
    merged = list(_merge([other, first, content, content, last]))
    mine = [delta for delta in merged if isinstance(delta, Delta) and not delta.index]
    assert mine == [first, content, content, last]
    assert other in merged


def test_progress_with_a_prompt_stays_apart() -> None:
    """It comes before the tokens, which are joined."""
    half, whole = (Delta(prefill=Prefill(4, 0, done)) for done in (2, 4))
    first, last = Delta(text="a", token_ids=(1,), prefill_tokens=4), Delta(finish_reason="stop")
    *told, joined = _merge([half, whole, first, last])
    assert told == [half, whole]
    assert isinstance(joined, Delta)
    assert (joined.text, joined.prefill_tokens, joined.prefill) == ("a", 4, None)


@pytest.mark.parametrize("logprob", [float("-inf"), float("inf"), float("nan")])
def test_what_json_cannot_say(logprob: float) -> None:
    assert finite(logprob) == LOWEST
