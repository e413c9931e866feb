"""When thought is ended by force, and how tokens of thought are counted."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.chat.answer.reasoning_tokens import ThoughtTokens
from enginebay.contract.sampling_params import ReasoningBudget
from enginebay.engine.completion import Completion
from enginebay.engine.reasoning_budget import BudgetWatch
from tests.run import request

CLOSE = (1, 2, 3)


def budget(tokens: int, *, inside: bool = False) -> ReasoningBudget:
    return ReasoningBudget(
        tokens=tokens, start="<t>", end="</t>", close_token_ids=CLOSE, starts_inside=inside
    )


def forced_at(limit: ReasoningBudget, texts: Iterable[str]) -> list[int]:
    """Before which of these tokens thought was ended by force; the last number is the end."""
    watch = BudgetWatch(limit)
    places = []
    texts = list(texts)
    for place, text in enumerate([*texts, None]):
        if watch.forced is not None:
            places.append(place)
            for token_id in CLOSE:
                assert watch.forced == token_id
                watch.add("?")
            assert watch.forced is None
        if text is not None:
            watch.add(text)
    return places


@pytest.mark.parametrize(
    ("tokens", "inside", "texts", "places"),
    [
        (2, True, ["a", "b", "c"], [2]),
        (2, True, ["a", "b"], [2]),
        (2, True, ["a", "</t>", "c"], []),
        (2, False, ["a", "b", "c"], []),
        (2, False, ["x", "<t>", "a", "b", "c"], [4]),
        (0, True, ["a"], [0]),
        (0, False, ["<t>", "a"], [1]),
        (0, False, ["a", "b"], []),
        # The budget is that of all thought together.
        (2, False, ["<t>", "a", "</t>", "x", "<t>", "b", "c"], [6]),
        (1, True, ["a", "x", "<t>", "y"], [1, 3]),
        # Tags of several tokens, and several tags in a token.
        (2, False, ["<", "t", ">", "a", "b", "c"], [5]),
        (3, True, ["a", "</t><t>", "b", "c"], [3]),
        (1, True, ["</t>x<t></t>", "a", "b"], []),
        # A tag that has begun may end, and a character be completed, without being torn.
        (2, True, ["a", "b<", "/t>", "c"], []),
        (2, True, ["a", "<", "b", "c"], [3]),
        (2, True, ["a", "", "é", "c"], [3]),
        (1, True, [""] * 20, [9]),
    ],
)
def test_when_thought_is_ended(
    tokens: int, inside: bool, texts: list[str], places: list[int]
) -> None:
    assert forced_at(budget(tokens, inside=inside), texts) == places


pieces = st.sampled_from(["a", "<", "t>", "</t>", "<t>", "", "x<t>y", "</t", ">"])


@given(st.lists(pieces, max_size=40), st.integers(0, 5), st.booleans())
def test_no_more_is_thought_than_the_budget_and_its_grace(
    texts: list[str], tokens: int, inside: bool
) -> None:
    watch = BudgetWatch(budget(tokens, inside=inside))
    said, thought, thinking = "", 0, inside
    for text in texts:
        while watch.forced is not None:
            watch.add("!")
            said, thinking = "", False
        watch.add(text)
        was = thinking
        said += text
        while (tag := "</t>" if thinking else "<t>") in said:
            said = said.partition(tag)[2]
            thinking = not thinking
        thought += was and thinking
        assert thought <= tokens + 8


@pytest.mark.parametrize(
    ("pieces", "stretches", "count"),
    [
        ([(7, 1), (2, 1), (8, 1), (3, 1)], [(7, True), (2, True), (8, True), (3, False)], 3),
        ([(3, 1), (4, 1), (1, 1)], [(7, True), (1, False)], 2),  # a tag of two tokens
        ([(10, 2), (5, 3)], [(7, True), (8, False)], 2),  # a token across the end of thought
        ([(0, 1), (0, 1), (3, 1), (2, 1)], [(3, True), (2, False)], 3),  # bytes of a character
        ([(3, 1), (0, 1)], [(3, True)], 1),  # the end of the sequence
        ([(3, 1)], [(1, True)], 0),  # still held back
        ([], [(1, True)], 0),
    ],
)
def test_tokens_of_thought(
    pieces: list[tuple[int, int]], stretches: list[tuple[int, bool]], count: int
) -> None:
    tokens = ThoughtTokens()
    for piece in pieces:
        tokens.add(*piece)
    for stretch in stretches:
        tokens.settle([stretch])
    assert tokens.count == count


class Letters:
    """Token ids are characters."""

    def feed(self, token_id: int) -> str:
        return chr(token_id)

    def finish(self) -> str:
        return ""


@pytest.mark.parametrize("held", ["", "a", "ab", "abcd", "\x01"])
def test_tokens_chosen_before_the_end_was_asked_for_come_first(held: str) -> None:
    """As where they were held for the beginning of a banned string."""
    completion = Completion(
        request([7], max_tokens=50),
        0,
        max_tokens=50,
        eos_token_ids=frozenset(),
        detokenizer=Letters(),
    )
    completion.append(ord("x"))
    assert completion.end_reasoning(budget(0, inside=True), [ord("x")], Letters())
    for character in held:
        assert completion.forced is not None
        completion.append(ord(character))
    said = []
    while (forced := completion.forced) is not None:
        said.append(forced)
        completion.append(forced)
    assert tuple([*map(ord, held), *said][-3:]) == CLOSE
    assert len(said) >= 2
