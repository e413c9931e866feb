"""Behind thought, content that keeps to a grammar is passed on as it is."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay import ContentDelta, Part, ReasoningDelta
from enginebay.chat.answer.answer_parser import AnswerForm, AnswerParser
from enginebay_parsers import REASONING

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


AROUND = ["harmony", "muse", "solar", "kimi-k3", "cohere", "hunyuan-a13b", "apriel", "granite"]


@pytest.mark.parametrize("name", AROUND)
@given(data=st.data(), thinks=st.booleans(), inside=st.booleans(), closed=st.booleans())
def test_the_tags_around_the_content_are_dropped(
    name: str, data: st.DataObject, thinks: bool, inside: bool, closed: bool
) -> None:
    """And those within it stay, though the content be nothing but tags."""
    marks = MARKS[name]
    assert marks
    around = REASONING[name].answer_marks(behind_thought=thinks or inside)
    tags = [marks.start, marks.end, *marks.others, *around.opens, *around.closes]
    word = st.sampled_from([*tags, *(tag[:-1] for tag in tags), "a", "`", "\n", "<"])
    content = '{"' + "".join(data.draw(st.lists(word, max_size=6))) + '"}'
    begun = marks.start if thinks and not inside else ""
    thought = f"{begun}hm{marks.end}" if thinks or inside else ""
    opening = data.draw(st.sampled_from(["", *around.opens][around.required :]))
    closing = data.draw(st.sampled_from(around.closes)) if around.closes and closed else ""
    text = f"{thought}{opening}{content}{closing}"
    thinking, said, count = parse(name, data.draw(cut(text)), inside=inside)
    assert (thinking, said) == ("hm" if thought else "", content)
    assert count == len(thought)


@given(data=st.data(), inside=st.booleans())
@pytest.mark.parametrize("name", ["think", "granite", "solar"])
def test_space_in_front_of_json_is_no_content(name: str, data: st.DataObject, inside: bool) -> None:
    marks, around = MARKS[name], REASONING[name].answer_marks(behind_thought=True)
    assert marks
    opening = data.draw(st.sampled_from(["", *around.opens]))
    text = f'{"" if inside else marks.start}hm{marks.end} \n\n{opening}{{"a": "\n\n"}}'
    parsed = parse(name, data.draw(cut(text)), inside=inside, trim=True)
    assert parsed[:2] == ("hm", '{"a": "\n\n"}')
    if not opening:
        kept = parse(name, data.draw(cut(text)), inside=inside)
        assert kept[1] == ' \n\n{"a": "\n\n"}'


@pytest.mark.parametrize("name", AROUND)
def test_an_answer_that_is_cut_off(name: str) -> None:
    marks, around = MARKS[name], REASONING[name].answer_marks(behind_thought=True)
    assert marks
    content, opening = '{"a": 1}', "".join(around.opens[:1])
    text = f"{marks.start}hm{marks.end}{opening}{content}{''.join(around.closes[:1])}"
    for end in range(len(marks.start), len(text) + 1):
        thought, said, _ = whole = parse(name, [text[:end]], inside=False)
        assert whole == parse(name, list(text[:end]), inside=False)
        assert thought.startswith("hm"[: end - len(marks.start)])
        assert content.startswith(said) or said in text  # a torn tag may as well be content
    assert (thought, said) == ("hm", content)


CALL = (
    "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"
)


@pytest.mark.parametrize("thought", ["", "<|channel|>analysis<|message|>hm<|end|>"])
def test_calls_instead_of_the_content(thought: str) -> None:
    """Go on to the parser of calls as the format's own parser hands them on."""
    for pieces in ([thought + CALL], list(thought + CALL)):
        assert parse("harmony", pieces, inside=False)[:2] == ("hm" if thought else "", "{}")
    call = "<|tool_calls|>"
    for pieces in ([f"<|begin|>assistant{call}"], [*f"<|begin|>assistant{call}"]):
        assert parse("solar", pieces, inside=False)[:2] == ("", call)
