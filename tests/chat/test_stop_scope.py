"""Stop strings match in the answer only, in every format and however the text is cut. ANS-1"""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay import AsideMarks, Completion, ContentDelta, Delta, StopScope, StopStrings
from enginebay.chat.answer.collector import Collector
from enginebay_parsers import REASONING
from tests.engine.test_budget import Letters
from tests.run import request

THOUGHT, ANSWER = "Two and two is four.", "It is 4."
WORDS = st.lists(st.sampled_from(["a", "b", "ab", "\n", " ", "It", "<", "|"]), max_size=8)
# Parts of marks are stop strings as well, and so is what separates reasoning from the answer.
STOPS = ["a", "b", "ba", "\n", "\n\n", "t", "a\nb", ">", "|", "]", "assistant", "final", "think"]


def content(name: str, pieces: Sequence[str], *, inside: bool) -> str:
    """The content that a client gets of this text."""
    collector = Collector(REASONING[name].parser(inside=inside), starts_in_reasoning=inside)
    parts = [part for piece in pieces for part in collector.feed(Delta(text=piece))]
    parts += collector.feed(Delta(finish_reason="stop"))
    return "".join(part.text for part in parts if isinstance(part, ContentDelta))


def stopped(
    scope: StopScope, pieces: Sequence[str], stops: Sequence[str], *, keep: bool = False
) -> tuple[list[str], str | None]:
    """What an engine lets out of this text, in pieces, and the stop string it met."""
    strings = StopStrings(stops, keep=keep, scope=scope)
    return [*map(strings.feed, pieces), strings.finish()], strings.found


def first_stop(answer: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """The answer up to the stop string that ends first."""
    found = [(at + len(stop), at, stop) for stop in stops if (at := answer.find(stop)) >= 0]
    return (answer[: min(found)[1]], min(found)[2]) if found else (answer, None)


def cut_at(text: str, places: set[int]) -> list[str]:
    ends = [0, *sorted(place for place in places if place < len(text)), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(ends)]


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("name", REASONING)
@given(
    thought=WORDS.map("".join),
    answer=WORDS.map("".join),
    stops=st.lists(st.sampled_from(STOPS), min_size=1, max_size=3),
    cuts=st.sets(st.integers(1, 99), max_size=12),
)
def test_the_answer_ends_at_a_stop_string_and_reasoning_does_not(
    name: str, inside: bool, thought: str, answer: str, stops: list[str], cuts: set[int]
) -> None:
    example = REASONING[name].example
    if inside:
        example = THOUGHT + example.partition(THOUGHT)[2]
    raw = example.replace(THOUGHT, f"\n{thought}.\n").replace(ANSWER, f"\n\nx{answer}")
    scope = StopScope(asides=REASONING[name].asides(), begins="aside" if inside else "before")
    pieces, found = stopped(scope, cut_at(raw, cuts), stops)
    expected = first_stop(content(name, [raw], inside=inside).lstrip(), stops)
    assert (content(name, pieces, inside=inside).lstrip(), found) == expected


CALL = AsideMarks(starts=("<call>",), ends=("</call>",), opens_with="{[")
THINK = AsideMarks(starts=("<think>",), ends=("</think>",), comes="once")
PIECES = ["<think>", "</think>", "<call>", "</call>", "<", "`", "```\n", "\n", " ", "a", "{"]


@given(
    text=st.lists(st.sampled_from(PIECES), max_size=12).map("".join),
    stops=st.lists(st.sampled_from(["a", "\n", "a\n", "<", "`a"]), min_size=1, max_size=2),
    anywhere=st.sampled_from([(), ("a",), ("\n",)]),
    begins=st.sampled_from(["aside", "before", "answer"]),
    keep=st.booleans(),
    cuts=st.sets(st.integers(1, 60), max_size=12),
)
def test_the_cut_of_the_text_does_not_matter(
    text: str, stops: list[str], anywhere: tuple[str, ...], begins: Any, keep: bool, cuts: set[int]
) -> None:
    scope = StopScope(asides=(THINK, CALL), begins=begins, anywhere=anywhere)
    whole, met = stopped(scope, [text], stops, keep=keep)
    for pieces in (cut_at(text, cuts), list(text)):
        told, found = stopped(scope, pieces, stops, keep=keep)
        assert ("".join(told), found) == ("".join(whole), met)
    if met is None:
        assert "".join(whole) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>`</think>`\n</think>\na\nb", "<think>`</think>`\n</think>\na"),
        ("<think>\n```\n</think>\n```\n</think>a\nb", "<think>\n```\n</think>\n```\n</think>a"),
        ("<think>x</think>a <think> b\nc", "<think>x</think>a <think> b"),
        ("`<think>` a\nb", "`<think>` a"),
        ("A <call> a\nb", "A <call> a"),
        ("a<call>{\n}</call>\nb\nc", "a<call>{\n}</call>\nb"),
        ("`<call>{` a\nb", "`<call>{` a"),
        ('a<call>{"`": 1}</call>b\nc', 'a<call>{"`": 1}</call>b'),
        ("<think>a", "<think>a"),
        ("\n \na\nb", "\n \na"),
    ],
)
def test_what_is_an_aside(text: str, expected: str) -> None:
    scope = StopScope(asides=(THINK, CALL))
    assert "".join(stopped(scope, list(text), ["\n"])[0]) == expected


def test_stop_strings_of_a_turn_match_in_reasoning() -> None:
    scope = StopScope(asides=(THINK,), begins="aside", anywhere=("END",))
    assert stopped(scope, ["x\nE", "ND"], ["\n", "END"]) == (["x\n", "", ""], "END")


def test_the_least_number_of_tokens() -> None:
    """Reasoning is followed before stop strings count at all."""
    scope = StopScope(asides=(THINK,))
    text = "<think>\n</think>a\nb\nc"
    for least, expected in ((0, "<think>\n</think>a"), (19, "<think>\n</think>a\nb")):
        completion = Completion(
            request([7], stop=("\n",), stop_scope=scope, min_tokens=least),
            0,
            max_tokens=99,
            eos_token_ids=frozenset(),
            detokenizer=Letters(),
        )
        deltas: list[Delta] = []
        while not (deltas and deltas[-1].finish_reason):
            deltas.append(completion.append(ord(text[len(deltas)])))
        assert "".join(delta.text for delta in deltas) == expected
