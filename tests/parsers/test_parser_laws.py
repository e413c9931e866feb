"""What holds for every registered format, over generated texts.

However the text is cut, the parts are the same; nothing is lost, nothing raises.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay_parsers import REASONING, TOOLS
from enginebay_parsers.json.object_calls import JsonCalls
from enginebay_parsers.reasoning.tag_pair import TagPair
from tests.effort import examples
from tests.parsers.cutting import Joined, Pipe, calls_of, content_of, cut, joined, run, text_of

TAG_PAIRS = {name: tags for name, tags in REASONING.items() if isinstance(tags, TagPair)}
# Two that stand for all whose arguments are JSON; tests/parsers/tools has each.
JSON_CALLS = {
    name: tools
    for name, tools in TOOLS.items()
    if isinstance(tools, JsonCalls) and name in ("hermes", "phi-4-mini")
}
# Every format of one kind with one of the other.
PIPES = [(name, "hermes") for name in TAG_PAIRS]
PIPES += [("think", name) for name in JSON_CALLS if name != "hermes"]

PROSE = ["a", "So ", "\n", " ", "ü", "日本", "🙂", "<", ">", "[", "]", "</", "|", "thought\n"]
JSON = ['{"name": "f"', ', "arguments": ', '{"a": 1}', "}", "{", '"', "\\", ":", ",", "null", "1"]
JSON += ['{"name": "f", "arguments": {"b": "c"}}', '"name"', '"f"', "'", "\t"]


def test_every_format_is_tested_here() -> None:
    # The others are in test_reasoning_channels.
    assert set(TAG_PAIRS) == set(REASONING) - {"harmony", "muse"}
    assert len(JSON_CALLS) == 2


def texts(*tags: str) -> st.SearchStrategy[str]:
    """Texts of tags, pieces of tags, prose and JSON, without code."""
    pieces = [tag[a:b] for tag in tags for a, b in ((0, -1), (1, None), (0, 2), (2, -1))]
    fragment = st.one_of(
        st.sampled_from(tags),
        st.sampled_from(PROSE),
        st.sampled_from(JSON),
        st.sampled_from(pieces),
        st.text(st.characters(exclude_characters="`~"), max_size=3),
    )
    return st.lists(fragment, max_size=25).map("".join)


def split_by_tags(tags: TagPair, text: str, *, inside: bool) -> Joined:
    """What `TagPair` says, written down for a whole text without spans and code."""
    result: Joined = []
    tag = tags.start if inside else ""
    begun, over = inside, False
    for piece in re.split(f"({re.escape(tags.start)}|{re.escape(tags.end)})", text):
        if piece == tags.start and not over:
            tag, inside, begun = piece, True, True
            continue
        if piece == tags.end and (inside or not begun):
            tag, inside, begun, over = piece, False, True, True
            continue
        if piece == tags.end and tags.end in tags.closes:
            begun = over = True
            continue
        begun = begun or bool(piece.strip())
        if tag == tags.start and tags.header:
            piece = "" if piece == tags.header else piece.removeprefix(f"{tags.header}\n")
        kind = "reasoning" if inside else "content"
        if piece and result and result[-1][0] == kind:
            result[-1] = (kind, f"{result[-1][1]}{piece}")
        elif piece:
            result.append((kind, piece))
    return result


@pytest.mark.parametrize("name", TAG_PAIRS)
@examples(150)
@given(data=st.data(), inside=st.booleans())
def test_reasoning(name: str, data: st.DataObject, inside: bool) -> None:
    # TAB-63, TAB-65, TAB-66, TAB-67
    tags = TAG_PAIRS[name]
    pieces = data.draw(cut(texts(tags.start, tags.end)))
    text = "".join(pieces)
    expected = split_by_tags(tags, text, inside=inside)
    for way in (pieces, [text], text):
        assert run(lambda: tags.parser(inside=inside), way) == expected


@pytest.mark.parametrize("name", JSON_CALLS)
@examples(1000)
@given(data=st.data())
def test_tools(name: str, data: st.DataObject) -> None:
    tools = JSON_CALLS[name]
    pieces = data.draw(cut(texts(tools.start, tools.end)))
    text = "".join(pieces)
    parts = run(tools.parser, pieces)
    assert parts == run(tools.parser, [text]) == run(tools.parser, text)
    calls = calls_of(parts)
    assert [index for index, _, _ in calls] == list(range(len(calls)))
    assert all(isinstance(name, str) and name for _, name, _ in calls)
    if not calls:
        assert content_of(parts) == text
    assert is_subsequence(content_of(parts), text)


@pytest.mark.parametrize(("reasoning", "tools"), PIPES)
@examples(150)
@given(data=st.data(), inside=st.booleans())
def test_pipe(reasoning: str, tools: str, data: st.DataObject, inside: bool) -> None:
    # TAB-59, TAB-60
    tags, calls = TAG_PAIRS[reasoning], JSON_CALLS[tools]
    pieces = data.draw(cut(texts(tags.start, tags.end, calls.start, calls.end)))
    text = "".join(pieces)

    def pipe() -> Pipe:
        return Pipe(tags, calls, inside=inside)

    parts = run(pipe, pieces)
    assert parts == run(pipe, [text]) == run(pipe, text)
    if calls.start not in text:
        # Not in this order: the tool parser may hold the last characters of content back while
        # thought goes by.
        expected = split_by_tags(tags, text, inside=inside)
        for kind in ("content", "reasoning"):
            assert text_of(parts, kind) == text_of(expected, kind)


def is_subsequence(part: str, whole: str) -> bool:
    chars = iter(whole)
    return all(char in chars for char in part)


@pytest.mark.parametrize("name", JSON_CALLS)
@examples(200)
@given(data=st.data())
def test_what_was_shown_is_a_beginning_of_what_comes(name: str, data: st.DataObject) -> None:
    """No part is ever taken back, and nothing is held longer than it may be a call."""
    tools = JSON_CALLS[name]
    text = data.draw(texts(tools.start, tools.end))
    parser = tools.parser()
    shown = joined([part for char in text for part in parser.feed(char)])
    whole = run(tools.parser, [text])
    assert len(shown) <= len(whole)
    assert shown[:-1] == whole[: max(len(shown) - 1, 0)]
    if tools.start not in text and tools.end not in text:
        assert len(text) - len(content_of(shown)) < len(tools.end) + 1


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12)
    | st.sampled_from(['"', "\\", "</tool_call>", "<tool_call>{", "`</think>`", "[/THINK]"])
    | texts("<tool_call>", "</tool_call>", "<think>", "</think>"),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=8,
)  # fmt: skip
arguments = st.dictionaries(st.text(max_size=8), values, max_size=4)
names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.\-é]{0,11}", fullmatch=True)
prose = st.text(st.sampled_from("abc é日🙂.,;:!?\n(){}\"'\\"), max_size=12)


# In front of the name, more of them than this in a string are no call any more: see CallsParser.
MOST_TAGS = 8

OTHER_MEMBERS = [("type", '"function"'), ("x", '[{"name": "</tool_call>"}]'), ("id", "-1e3")]


@dataclass(frozen=True)
class Call:
    name: str
    arguments: Mapping[str, object]
    text: str
    written_arguments: str


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """A call, the way a model may write one."""
    name, value = draw(names), draw(arguments)
    written = json.dumps(
        value,
        ensure_ascii=draw(st.booleans()),
        indent=draw(st.sampled_from([None, 2])),
        separators=draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " :\t")])),
    )
    key = draw(st.sampled_from(["arguments", "parameters"]))
    twice = draw(st.integers(0, 5)) == 0
    members = [
        ("name", json.dumps(name, ensure_ascii=draw(st.booleans()))),
        (key, json.dumps(written) if twice else written),
        *draw(
            st.sampled_from([[], [("type", '"function"')], [("x", '[{"name": "</tool_call>"}]')]])
        ),
    ]
    if not value and draw(st.booleans()):
        members.pop(1)
        written = "{}"
    if draw(st.booleans()):
        members = draw(st.permutations(members))
    in_front = members[: next(at for at, (key, _) in enumerate(members) if key == "name")]
    if "".join(text for _, text in in_front).count("tool_call>") > MOST_TAGS:
        members.sort(key=lambda member: member[0] != "name")
    space = draw(st.sampled_from(["", " ", "\n  "]))
    text = f",{space}".join(f'{space}"{key}"{space}:{space}{text}{space}' for key, text in members)
    return Call(name, value, f"{{{text}}}", written)


@st.composite
def conversations(draw: st.DrawFn, tags: TagPair, tools: JsonCalls) -> tuple[str, Joined]:
    """A text of prose, thought and calls, and the parts it must come out as."""
    text: list[str] = []
    expected: Joined = []
    inside, begun, over = False, False, False
    count = 0
    for kind in draw(st.lists(st.sampled_from("psecclbn"), max_size=8)):
        match kind:
            case "p":
                said = draw(prose)
                text.append(said)
                add(expected, inside, said)
                begun = begun or bool(said.strip())
            case "s" if not over:
                text.append(tags.start)
                inside = begun = True
            case "e" if inside or not begun:
                text.append(tags.end)
                inside, begun, over = False, True, True
            case "s" | "e":
                tag = tags.start if kind == "s" else tags.end
                text.append(tag)
                add(expected, inside, "" if tag in tags.closes else tag)
                over = over or tag in tags.closes
            case "n":
                text.append(f"{tools.start} no")
                add(expected, inside, f"{tools.start} no")
                begun = True
            case _:
                begun = True
                some = draw(st.lists(calls(), min_size=1, max_size=3 if kind in "lb" else 1))
                between = draw(st.sampled_from([", ", ",\n"] if kind == "l" else ["", "\n"]))
                body = between.join(call.text for call in some)
                body = f"[{body}]" if kind == "l" else body
                space = draw(st.sampled_from(["", "\n", " "]))
                text.append(f"{tools.start}{space}{body}{space}{tools.end}")
                for call in some:
                    expected.append(("call", count, call.name, call.written_arguments))
                    count += 1
    return "".join(text), expected


def add(expected: Joined, inside: bool, text: str) -> None:
    kind = "reasoning" if inside else "content"
    if text and expected and expected[-1][0] == kind:
        expected[-1] = (kind, f"{expected[-1][1]}{text}")
    elif text:
        expected.append((kind, text))


@pytest.mark.parametrize(("reasoning", "tools"), PIPES)
@examples(120)
@given(data=st.data())
def test_well_formed_text_comes_back_exactly(
    reasoning: str, tools: str, data: st.DataObject
) -> None:
    # TAB-51, TAB-55, TAB-69, TAB-70
    tags, form = TAG_PAIRS[reasoning], JSON_CALLS[tools]
    text, expected = data.draw(conversations(tags, form))
    pieces = data.draw(cut(st.just(text)))

    def pipe() -> Pipe:
        return Pipe(tags, form, inside=False)

    assert run(pipe, pieces) == run(pipe, [text]) == run(pipe, text) == expected


@examples(300)
@given(data=st.data(), call=calls())
@pytest.mark.parametrize("name", JSON_CALLS)
def test_arguments_are_the_json_that_was_written(
    name: str, data: st.DataObject, call: Call
) -> None:
    tools = JSON_CALLS[name]
    pieces = data.draw(cut(st.just(f"{tools.start}{call.text}{tools.end}")))
    ((index, called, written),) = calls_of(run(tools.parser, pieces))
    assert (index, called, written) == (0, call.name, call.written_arguments)
    assert json.loads(str(written)) == call.arguments
