"""Code in answers and in reasoning is text, whatever it holds, in every format (ANS-3, ANS-4)."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay import Parser
from enginebay_parsers import REASONING, TOOLS
from enginebay_parsers.reasoning.tag_pair import TagPair
from enginebay_parsers.xml.xml_calls import XmlCalls
from tests.effort import examples
from tests.parsers.cutting import (
    Joined,
    MakeParser,
    Pipe,
    calls_of,
    content_of,
    cut,
    run,
    same_however_cut,
    text_of,
)
from tests.parsers.test_examples import WEATHER

TAG_PAIRS = {name: tags for name, tags in REASONING.items() if isinstance(tags, TagPair)}
# Channels are special tokens, which are not in code; bare calls begin answers.
CALLS = [name for name in TOOLS if name not in ("harmony", "muse")]
BARE = ("llama3-json", "xlam", "functionary-v3.2", "glm-4", "pythonic")
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


def r(text: str) -> tuple[str, str]:
    return ("reasoning", text)


def c(text: str) -> tuple[str, str]:
    return ("content", text)


def fence(char: str, length: int, margin: str, info: str) -> Callable[[str], str]:
    ticks = char * length
    indent = " " * len(margin) if margin.strip() != ">" else margin

    def fenced(text: str) -> str:
        lines = "".join(f"{indent}{line}\n" for line in text.split("\n"))
        return f"\n\n{margin}{ticks}{info}\n{lines}{indent}{ticks}\n\n"

    return fenced


INLINE: Sequence[Callable[[str], str]] = [
    lambda text: f"`{text}`",
    lambda text: f"`r'{text}(.*?)'`",
    lambda text: f"`` `{text}` ``",
    lambda text: f"```{text}```",
]
fences = st.builds(
    fence,
    st.sampled_from("`~"),
    st.integers(3, 5),
    st.sampled_from(["", " ", "   ", "- ", "1. ", "    ", "> "]),
    st.sampled_from(["", "python", " xml title", "c++"]),
)
nested = fences.map(lambda outer: lambda text: outer(f"a\n~~ ``\n{text}\nb\n `x`"))
forms = st.one_of(st.sampled_from(INLINE), fences, nested)


def written(form: Callable[[str], str], example: str) -> str:
    """An example in code. No blank line is in a span, and no backtick in one of them."""
    return form(example.replace("```json", "").replace("`", "").replace("\n\n", "\n"))


@pytest.mark.parametrize("name", TAG_PAIRS)
@examples(60)
@given(data=st.data(), inside=st.booleans(), form=forms)
def test_reasoning_tags_in_code(
    name: str, data: st.DataObject, inside: bool, form: Callable[[str], str]
) -> None:
    tags = TAG_PAIRS[name]
    shown = data.draw(
        st.sampled_from([tags.start, tags.end, f"{tags.start}x{tags.end}", *tags.answer])
    )
    code = written(form, f"x = '{shown}'  # so")
    thought, answer = f"Hm: {code}So.", f"Well: {code}And."
    text = f"{'' if inside else tags.start}{thought}{tags.end}{answer}"
    expected = [r(thought), c(answer)]
    pieces = data.draw(cut(st.just(text)))
    for way in (pieces, [text], text):
        assert run(lambda: tags.parser(inside=inside), way) == expected


@pytest.mark.parametrize("name", CALLS)
@examples(60)
@given(data=st.data(), form=forms)
def test_calls_in_code(name: str, data: st.DataObject, form: Callable[[str], str]) -> None:
    tools = TOOLS[name]
    code = written(form, tools.example)
    real = "" if name in BARE else tools.example
    text = f"Write this: {code} and go on.\n\n{real}"
    pieces = data.draw(cut(st.just(text)))
    for way in (pieces, [text], text):
        parts = run(lambda: tools.parser(WEATHER), way)
        assert content_of(parts).startswith(f"Write this: {code} and go on.")
        assert len(calls_of(parts)) == (2 if real else 0)


@pytest.mark.parametrize("name", [name for name in CALLS if name not in BARE])
@examples(30)
@given(data=st.data(), form=forms)
def test_calls_in_code_of_thought(
    name: str, data: st.DataObject, form: Callable[[str], str]
) -> None:
    tools, tags = TOOLS[name], TAG_PAIRS["think"]
    code = written(form, tools.example)
    text = f"<think>I write {code} then.</think>Write {code} so.\n\n{tools.example}"
    pieces = data.draw(cut(st.just(text)))
    for way in (pieces, [text], text):
        parts = run(lambda: Pipe(tags, tools, inside=False), way)
        assert text_of(parts, "reasoning") == f"I write {code} then."
        assert content_of(parts).startswith(f"Write {code} so.")
        assert len(calls_of(parts)) == 2


PIECES = ["`", "``", "```", "~~~", "\n", "\n\n", "    ", "- ", "> ", "a", "it`s ", " x", "python\n"]


@pytest.mark.parametrize("name", [*TAG_PAIRS, *(name for name in TOOLS if name not in REASONING)])
@examples(60)
@given(data=st.data(), inside=st.booleans())
def test_any_cut_gives_the_same(name: str, data: st.DataObject, inside: bool) -> None:
    tags, tools = REASONING.get(name), TOOLS.get(name)
    marks = [tags.start, tags.end, f"\n{tags.end}\n\n"] if isinstance(tags, TagPair) else []
    marks += [tools.example, *(span.start for span in tools.spans)] if tools else []
    fragment = st.sampled_from([*PIECES, *PIECES, *marks])
    pieces = data.draw(cut(st.lists(fragment, max_size=16).map("".join)))

    def make() -> Parser:
        if tags and tools:
            return Pipe(tags, tools, inside=inside)
        return tags.parser(inside=inside) if tags else TOOLS[name].parser(WEATHER)

    text = "".join(pieces)
    parts = run(make, pieces)
    assert parts == run(make, [text]) == run(make, text)


def pipe(*, inside: bool = False) -> MakeParser:
    return lambda: Pipe(REASONING["think"], TOOLS["hermes"], inside=inside)


CALLED = ("call", 0, "get_weather", '{"city": "Oslo"}')
TICKS = CALL.replace("Oslo", "`date` and `x")
TICKED = ("call", 0, "get_weather", '{"city": "`date` and `x"}')

# What a real call or a real end of reasoning survives.
REAL: list[tuple[str, Joined]] = [
    # A span ends in its paragraph, or is none.
    (f"Use `foo` then {CALL}", [c("Use `foo` then "), CALLED]),
    (f"It`s {CALL}", [c("It`s "), CALLED]),
    (f"Use `foo\n\n{CALL} or `bar`", [c("Use `foo\n\n"), CALLED, c(" or `bar`")]),
    (f"Use `foo\n{CALL}\n", [c("Use `foo\n"), CALLED, c("\n")]),
    (f"`a\n```\nx\n```\n{CALL}", [c("`a\n```\nx\n```\n"), CALLED]),
    # One that looks like the beginning of a span ends none.
    (f"It`s {TICKS}", [c("It`s "), TICKED]),
    (f"Use the `foo:\n{TICKS}", [c("Use the `foo:\n"), TICKED]),
    ("It`s the `<tool_call>` tag", [c("It`s the `<tool_call>` tag")]),
    # A closed fence is over.
    (f"```sh\n`ls`\n```\n{CALL}", [c("```sh\n`ls`\n```\n"), CALLED]),
    (f"```\na\n```{CALL}", [c("```\na\n```"), CALLED]),
    (f"~~~\n```\n~~~~\n{CALL}", [c("~~~\n```\n~~~~\n"), CALLED]),
    (f"So nice~~~\n{CALL}", [c("So nice~~~\n"), CALLED]),
    # Code in the arguments.
    (f"{TICKS}\n`<tool_call>`", [TICKED, c("\n`<tool_call>`")]),
    # Text that is none.
    (f"````md\n```\n{CALL}\n```\n````", [c(f"````md\n```\n{CALL}\n```\n````")]),
    (f"- so:\n  ```\n  {CALL}\n  ```\n{CALL}", [c(f"- so:\n  ```\n  {CALL}\n  ```\n"), CALLED]),
    (f"```\n{CALL}", [c(f"```\n{CALL}")]),
    (f"`\n{CALL}\n` so", [c(f"`\n{CALL}\n` so")]),
    # Reasoning that ends with a stray backtick, or in code that is never closed.
    ("<think>it`s so</think>Use `foo`.", [r("it`s so"), c("Use `foo`.")]),
    ("<think>the `foo\n</think>\nthe `foo`", [r("the `foo\n"), c("\nthe `foo`")]),
    ("<think>```\na\n```</think>```py\n", [r("```\na\n```"), c("```py\n")]),
    ("<think>```py\na\n</think>\n\nSo.", [r("```py\na\n"), c("\n\nSo.")]),
    (
        f"<think>```py\na\n</think>\n\nSo:\n```py\n</think>\n```\n{CALL}",
        [r("```py\na\n"), c("\n\nSo:\n```py\n</think>\n```\n"), CALLED],
    ),
    (
        "<think>```\n<think>\nx\n</think>\n\nHi\n```\nok</think>Yes",
        [r("```\n<think>\nx\n</think>\n\nHi\n```\nok"), c("Yes")],
    ),
    ("<think>~~~\n</think>\n\nHi\n~~~\n</think>Yes", [r("~~~\n</think>\n\nHi\n~~~\n"), c("Yes")]),
    ("<think>```\nif '</think>' in x:\n  y", [r("```\nif '</think>' in x:\n  y")]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "parts"), REAL)
def test_what_is_real(text: str, parts: Joined) -> None:
    assert same_however_cut(pipe(), text) == parts


def test_an_answer_does_not_wait_for_the_fence_of_its_reasoning() -> None:
    parser = REASONING["think"].parser(inside=True)
    parser.feed("```py\ndef f():\n</think>\n\n")
    answer = "word " * 120
    shown = [part for word in answer.split(" ") for part in parser.feed(f"{word} ")]
    assert shown
    assert type(shown[-1]).__name__ == "ContentDelta"


FENCED = [("command-r", "Action:\n```json"), ("deepseek-v3", "```json")]


@pytest.mark.parametrize(("name", "syntax"), FENCED)
def test_a_format_declares_that_its_calls_are_in_fences(name: str, syntax: str) -> None:
    tools = TOOLS[name]
    assert syntax in tools.example
    text = f"I look:\n```sh\nls\n```\n{tools.example}"
    parts = same_however_cut(lambda: tools.parser(WEATHER), text)
    assert len(calls_of(parts)) == 2
    assert content_of(parts).strip() == "I look:\n```sh\nls\n```"


def test_xml_arguments_may_be_markdown() -> None:
    tools = TOOLS["qwen3-coder"]
    assert isinstance(tools, XmlCalls)
    value = "# a\n\n```py\nx\n```\n\nIt`s `</think>`\n~~~"
    text = f"So:\n{tools.example.replace('Oslo', value)}\n`<tool_call>`"
    parts = same_however_cut(lambda: tools.parser(WEATHER), text)
    assert len(calls_of(parts)) == 2
