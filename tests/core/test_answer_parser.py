"""Behind thought, content that keeps to a grammar is passed on as it is."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.chat.answer_parser import AnswerForm, AnswerParser
from enginebay import ContentDelta, Part, ReasoningDelta
from parsers import REASONING

MARKS = {name: format.marks(tools=False) for name, format in REASONING.items()}
TAGS = ["think", "mistral", "gemma", "granite-3.2", "exaone-deep"]


def parse(
    name: str, pieces: Sequence[str], *, inside: bool, trim: bool = False
) -> tuple[str, str, int]:
    """Thought, content, and how many characters count as thought."""
    format, marks = REASONING[name], MARKS[name]
    assert marks
    at_once, behind = (format.answer_marks(behind_thought=each) for each in (False, True))
    form = AnswerForm(marks, at_once, behind, inside=inside, trim=trim)
    parser = AnswerParser(format.parser(inside=inside), form)
    parts: list[Part] = []
    settled = []
    for piece in pieces:
        parts += parser.feed(piece)
        settled += parser.settled()
    parts += parser.finish()
    settled += parser.settled()
    assert sum(length for length, _ in settled) == len("".join(pieces))
    thought = "".join(part.text for part in parts if isinstance(part, ReasoningDelta))
    content = "".join(part.text for part in parts if isinstance(part, ContentDelta))
    return thought, content, sum(length for length, is_thought in settled if is_thought)


@st.composite
def cut(draw: st.DrawFn, text: str) -> list[str]:
    places = sorted(draw(st.sets(st.integers(0, len(text)), max_size=12)))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


WORDS = st.sampled_from(["<think>", "</think>", "[THINK]", "[/THINK]", "<", "a", "\n", '"', "`"])
TEXT = st.lists(WORDS, max_size=6).map("".join)


@pytest.mark.parametrize("name", TAGS)
@given(data=st.data(), inside=st.booleans(), content=TEXT)
def test_the_content_is_as_it_was_written(
    name: str, data: st.DataObject, inside: bool, content: str
) -> None:
    marks = MARKS[name]
    assert marks
    begun = "" if inside else marks.start
    text = f"{begun}I think{marks.end}{content}{marks.end}"
    thought, said, count = parse(name, data.draw(cut(text)), inside=inside)
    assert (thought, said) == ("I think", content + marks.end)
    assert count == len(f"{begun}I think{marks.end}")


@given(data=st.data(), text=TEXT.filter(lambda text: not text.startswith("<think>")))
def test_what_does_not_begin_with_the_tag_is_no_thought(data: st.DataObject, text: str) -> None:
    assert parse("think", data.draw(cut(text)), inside=False) == ("", text, 0)


@pytest.mark.parametrize("inside", [True, False])
def test_thought_that_is_cut_off(inside: bool) -> None:
    begun = "" if inside else "<think>"
    assert parse("think", [f"{begun}I th", "ink</thi"], inside=inside)[:2] == ("I think</thi", "")
    assert parse("think", ["<thi"], inside=False)[:2] == ("", "<thi")
