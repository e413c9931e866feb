"""Deltas that piled up while a client was slow."""

import pytest

from core.chat.answer.logprobs import LOWEST, finite
from core.engine.streams import _merge
from enginebay import ContentDelta, Delta, ReasoningDelta, TokenLogprob


def test_deltas_with_logprobs_keep_their_place() -> None:
    """Those of a chat have them only where there is content."""
    first, last = Delta(parts=(ReasoningDelta("a"),)), Delta(finish_reason="stop")
    content = Delta(parts=(ContentDelta("b"),), logprobs=(TokenLogprob(-1, "b", -0.5),))
    other = Delta(index=1, parts=(ContentDelta("c"),))
    merged = list(_merge([other, first, content, content, last]))
    mine = [delta for delta in merged if isinstance(delta, Delta) and not delta.index]
    assert mine == [first, content, content, last]
    assert other in merged


@pytest.mark.parametrize("logprob", [float("-inf"), float("inf"), float("nan")])
def test_what_json_cannot_say(logprob: float) -> None:
    assert finite(logprob) == LOWEST
