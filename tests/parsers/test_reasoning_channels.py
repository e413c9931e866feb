"""Harmony and Muse: thought, calls and answer in messages with headers."""

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay import Parser, ReasoningParser
from enginebay_parsers import REASONING, TOOLS
from enginebay_parsers.channels.channels import Channels
from tests.effort import examples
from tests.parsers.cutting import Joined, Pipe, content_of, cut, run, same_however_cut, text_of

HARMONY, MUSE = REASONING["harmony"], REASONING["muse"]
CALLS = TOOLS["harmony"]
SPANS = CALLS.spans

START, ANALYSIS = "<|start|>assistant", "<|channel|>analysis<|message|>"
FINAL, COMMENTARY = "<|channel|>final<|message|>", "<|channel|>commentary<|message|>"
CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>'


def r(text: str) -> tuple[str, str]:
    return ("reasoning", text)


def c(text: str) -> tuple[str, str]:
    return ("content", text)


def f(name: str, arguments: str, index: int = 0) -> tuple[str, int, str, str]:
    return ("call", index, name, arguments)


def pipe(*, inside: bool = False) -> Parser:
    return Pipe(HARMONY, CALLS, inside=inside)


def alone(*, inside: bool = False) -> ReasoningParser:
    """Without tools, calls are nothing special."""
    return HARMONY.parser(inside=inside)


# With tools. The prompt ends with `<|start|>assistant`.
CORPUS: dict[str, tuple[str, Sequence[tuple[object, ...]]]] = {
    # Well-formed.
    "thought and answer": (
        f"{ANALYSIS}hm<|end|>{START}{FINAL}Yes.<|return|>",
        [r("hm"), c("Yes.")],
    ),
    "end tokens have no text": (f"{ANALYSIS}hm<|end|>{START}{FINAL}Yes.", [r("hm"), c("Yes.")]),
    "call": (f"{ANALYSIS}hm<|end|>{START}{CALL}", [r("hm"), f("f", '{"a": 1}')]),
    "recipient in the role": (
        f'{START} to=functions.f<|channel|>commentary json<|message|>{{"a": 1}}<|call|>',
        [f("f", '{"a": 1}')],
    ),
    "recipient in the role that the prompt begins": (
        ' to=functions.f<|channel|>commentary json<|message|>{"a": 1}<|call|>',
        [f("f", '{"a": 1}')],
    ),
    "preamble": (
        f"{COMMENTARY}I'll look.<|end|>{START}{CALL}",
        [c("I'll look."), f("f", '{"a": 1}')],
    ),
    "call on the channel of thought": (
        '<|channel|>analysis to=functions.f<|message|>{"a": 1}<|call|>',
        [f("f", '{"a": 1}')],
    ),
    "two calls": (
        f'{CALL}{START}<|channel|>commentary to=functions.g<|message|>{{}}<|call|>',
        [f("f", '{"a": 1}'), f("g", "{}", 1)],
    ),
    "thought between calls": (
        f"{ANALYSIS}a<|end|>{START}{CALL}{START}{ANALYSIS}b<|end|>{START}{FINAL}c",
        [r("a"), f("f", '{"a": 1}'), r("b"), c("c")],
    ),
    "built-in tool": (
        f"<|channel|>analysis to=python code<|message|>print(1)<|call|>{START}{FINAL}1",
        [r("print(1)"), c("1")],
    ),
    "empty arguments": (
        "<|channel|>commentary to=functions.f<|message|> <|call|>", [f("f", "{}")],
    ),
    "arguments that are no JSON": (
        "<|channel|>commentary to=functions.f code<|message|>print(1)\n<|call|>",
        [f("f", "print(1)")],
    ),
    "empty messages": (f"{ANALYSIS}<|end|>{START}{FINAL}<|return|>", []),
    # Truncated.
    "cut in thought": (f"{ANALYSIS}hm, s", [r("hm, s")]),
    "cut in a header": (f"{ANALYSIS}hm<|end|>{START}<|channel|>fin", [r("hm")]),
    "cut in a tag": (f"{ANALYSIS}hm<|en", [r("hm<|en")]),
    "cut in the recipient": (f"{START}<|channel|>commentary to=func", []),
    "cut in arguments": (
        '<|channel|>commentary to=functions.f<|message|>{"a": [1, ', [f("f", '{"a": [1, ')],
    ),
    "cut in front of arguments": ("<|channel|>commentary to=functions.f<|message|>", [f("f", "")]),
    # Malformed.
    "no end of thought": (f"{ANALYSIS}hm{START}{FINAL}Yes.", [r("hm"), c("Yes.")]),
    "no beginning of the answer": (f"{ANALYSIS}hm<|end|>{FINAL}Yes.", [r("hm"), c("Yes.")]),
    "stray channel": (
        f"<|channel|>commentary to=assistant{ANALYSIS}hm<|end|>{START}{FINAL}Yes.",
        [r("hm"), c("Yes.")],
    ),
    "no message tag": ("<|channel|>analysis\nhm<|end|>", [r("\nhm")]),
    "no message tag in the answer": (f"{START}<|channel|>final Yes.<|return|>", [c(" Yes.")]),
    "text without a header": ("Just text.", [c("Just text.")]),
    "text behind the end": (f"{FINAL}a<|end|>b", [c("ab")]),
    "stray tags": ("a<|message|>b<|end|>c<|call|>d", [c("abcd")]),
    "unknown channel": ("<|channel|>other<|message|>a<|end|>", [c("a")]),
    "no name": ("<|channel|>commentary to=functions.<|message|>{}<|call|>", [c("{}")]),
    "text behind arguments": (
        '<|channel|>commentary to=functions.f<|message|>{"a": 1} so<|call|>',
        [f("f", '{"a": 1}'), c("so")],
    ),
    "a header that never ends": (
        f"{START}{' word' * 50}<|end|>",
        [c(" word" * 49 + " word")],
    ),
    # Unicode.
    "letters": (
        f"{ANALYSIS}Grüße 世界 🙂<|end|>{START}{FINAL}Ça va? 👩‍👩‍👧",
        [r("Grüße 世界 🙂"), c("Ça va? 👩‍👩‍👧")],
    ),
    "name and arguments": (
        '<|channel|>commentary to=functions.météo<|message|>{"où": "東京"}<|call|>',
        [f("météo", '{"où": "東京"}')],
    ),
    # Adversarial.
    "tags in arguments": (
        '<|channel|>commentary to=functions.f<|message|>'
        '{"a": "<|end|><|start|>\\"<|call|>"}<|call|>',
        [f("f", '{"a": "<|end|><|start|>\\"<|call|>"}')],
    ),
    "quoted tags": (
        f"{ANALYSIS}I end with `<|end|>`.<|end|>{START}{FINAL}Write `<|start|>`.",
        [r("I end with `<|end|>`."), c("Write `<|start|>`.")],
    ),
    "almost tags": (f"{FINAL}<|end |> <|star <||end|", [c("<|end |> <|star <||end|")]),
    "text like a recipient": ("to=day or not to=day", [c("to=day or not to=day")]),
    "line break in arguments": (
        '<|channel|>commentary to=functions.f<|message|>{"a": "b\nc"}<|call|>',
        [f("f", '{"a": "b\\nc"}')],
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>",
        "<|channel|>commentary to=functions.f json<|message|>",
        " to=functions.f<|channel|>commentary json<|message|>",
        f"{START} to=functions.f<|channel|>commentary <|constrain|>json<|message|>",
        "<|channel|>analysis to=functions.f code<|message|>",
    ],
)
@pytest.mark.parametrize("thought", ["", f"{ANALYSIS}hm<|end|>{START}"])
def test_a_call_that_is_cut_off_gives_no_content(header: str, thought: str) -> None:
    # FIX-11: `length` may end an answer anywhere, but not inside a tag, which is one token
    if thought:
        header = header.removeprefix(START)  # which the thought ends with
    text = f'{thought}{header}{{"a": {{"b": "x \\"y\\" z"}}, "c": [1, 2]}}'
    tags = [tag.end() for tag in re.finditer(r"<\|\w+\|>", text)]
    for end in range(len(thought) or tags[0], len(text) + 1):
        parts = run(pipe, [text[:end]])
        assert content_of(parts).strip() in ("", "t", "to"), text[:end]
        assert all(str(part[3]) in text for part in parts if part[0] == "call")


@pytest.mark.parametrize("sample", CORPUS)
def test_harmony(sample: str) -> None:
    # TAB-55, TAB-60, TAB-63, TAB-69, VLLM-58, VLLM-59
    text, parts = CORPUS[sample]
    assert same_however_cut(pipe, text) == parts


WITHOUT_TOOLS = [
    (f"{ANALYSIS}hm<|end|>{START}{FINAL}Yes.<|return|>", [r("hm"), c("Yes.")]),
    # TAB-53
    (f"{ANALYSIS}hm<|end|>{START}{CALL}", [r("hm"), c('{"a": 1}')]),
    ("<|channel|>analysis to=functions.f<|message|>{}<|call|>", [r("{}")]),
]


@pytest.mark.parametrize(("text", "parts"), WITHOUT_TOOLS)
def test_harmony_without_tools(text: str, parts: Joined) -> None:
    assert same_however_cut(alone, text) == parts


def test_calls_on_the_channel_of_thought_can_be_left_in_it() -> None:
    # VLLM-60
    def make() -> ReasoningParser:
        return HARMONY.parser(inside=False, spans=SPANS, spans_in_thought=False)

    text = "<|channel|>analysis to=functions.f<|message|>{}<|call|>"
    assert same_however_cut(make, text) == [r("{}")]
    assert content_of(same_however_cut(make, CALL)) == START + CALL


def test_only_offered_functions_are_called_without_their_namespace() -> None:
    text = "<|channel|>commentary to=f<|message|>{}<|call|>"
    for schemas, parts in ((None, [f("f", "{}")]), ({"f": {}}, [f("f", "{}")]), ({}, [c("{}")])):
        assert run(lambda schemas=schemas: CALLS.parser(schemas), [START + text]) == parts


@pytest.mark.parametrize(
    ("prompt", "inside"),
    [
        # TAB-1, TAB-3, TAB-4, TAB-5, TAB-6
        (f"<|start|>user<|message|>hi<|end|>{START}", False),
        (f"<|start|>user<|message|>hi<|end|>{START}{ANALYSIS}", True),
        (f"<|start|>user<|message|>hi<|end|>{START}{ANALYSIS}I was", True),
        (f"{START}{ANALYSIS}hm<|end|>{START}{FINAL}", False),
        (f"{START}{ANALYSIS}hm<|end|>", False),
        (f"<|start|>system<|message|>Think in {ANALYSIS}.<|end|>{START}", False),
        ("", False),
    ],
)
def test_starts_inside(prompt: str, inside: bool) -> None:
    assert HARMONY.starts_inside(prompt) is inside


def test_starting_inside() -> None:
    def make() -> Parser:
        return pipe(inside=True)

    text = f"to=morrow<|end|>{START}{FINAL}Yes."
    assert same_however_cut(make, text) == [r("to=morrow"), c("Yes.")]


MUSE_SAMPLES = [
    (" to=self<|message|>hm<|eom|><|start|>assistant to=user<|message|>Yes.<|eot|>", "hm", "Yes."),
    (" to=self<|message|>hm<|eom|><|start|>assistant<|message|>Yes.", "hm", "Yes."),
    (" to=user<|message|>Yes.<|eot|>", "", "Yes."),
    (
        "<|start|>assistant to=self<|message|>hm<|eom|><|start|>assistant to=f<|message|>"
        '<atem:function_calls>\n<atem:invoke name="f">\n</atem:invoke>\n</atem:function_calls>',
        "hm",
        '<atem:function_calls>\n<atem:invoke name="f">\n</atem:invoke>\n</atem:function_calls>',
    ),
    (" to=self<|message|>cut off", "cut off", ""),
    (" to=se", "", ""),
    ("text", "", "text"),
    (" to=self<|message|>a<|eot|>b", "a", "b"),
]


@pytest.mark.parametrize(("text", "thought", "answer"), MUSE_SAMPLES)
def test_muse(text: str, thought: str, answer: str) -> None:
    parts = same_however_cut(lambda: MUSE.parser(inside=False), text)
    assert (text_of(parts, "reasoning"), content_of(parts)) == (thought, answer)


MUSE_CALL = (
    '<atem:function_calls>\n<atem:invoke name="f">\n'
    '<atem:parameter name="a">b</atem:parameter>\n</atem:invoke>\n</atem:function_calls>'
)
MUSE_CALLS = [
    # A call that is quoted to the user is content.
    (f" to=user<|message|>Write {MUSE_CALL}!<|eot|>", [c(f"Write {MUSE_CALL}!")]),
    (f" to=user<|message|>{MUSE_CALL}", [c(MUSE_CALL)]),
    (
        f" to=user<|message|>As in {MUSE_CALL}:<|eom|>{START} to=f<|message|>{MUSE_CALL}",
        [c(f"As in {MUSE_CALL}:"), f("f", '{"a": "b"}')],
    ),
    (
        f" to=self<|message|>hm<|eom|>{START} to=f<|message|>{MUSE_CALL}<|eom|>"
        f"{START} to=f<|message|>{MUSE_CALL}<|eom|>{START} to=user<|message|>So.<|eot|>",
        [r("hm"), f("f", '{"a": "b"}'), f("f", '{"a": "b"}', 1), c("So.")],
    ),
    # Nobody is named, or the prompt has the header.
    (f"{START}<|message|>{MUSE_CALL}<|eot|>", [f("f", '{"a": "b"}')]),
    (f"{MUSE_CALL}<|eot|>", [f("f", '{"a": "b"}')]),
    # Cut off.
    (f" to=f<|message|>{MUSE_CALL[:60]}", [f("f", "")]),
    (f" to=self<|message|>hm<|eom|>{START} to=us", [r("hm")]),
]


@pytest.mark.parametrize(("text", "parts"), MUSE_CALLS)
def test_muse_with_tools(text: str, parts: Joined) -> None:
    # TAB-60, TAB-69
    def make() -> Parser:
        return Pipe(MUSE, TOOLS["muse"], inside=False)

    assert same_however_cut(make, text) == parts
    if ("reasoning", "hm") not in parts:  # also where nothing reads its reasoning
        assert same_however_cut(TOOLS["muse"].parser, text) == parts


FRAGMENTS = [
    "<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>",
    "<|eom|>", "<|eot|>",
    " to=user<|message|>", MUSE_CALL, MUSE_CALL[:50],
    "assistant", "analysis", "final", "commentary", " to=functions.f",
    " to=self", "to=", " json", '{"a": ', '"b', '"', "}", "{", "\\", "`", "\n", " ", "x", "世",
    "<|", "|>", ANALYSIS, FINAL, CALL, START, "w" * 190,
]  # fmt: skip
texts = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=2), max_size=14).map("".join)


MAKERS = ["pipe", "tools", "harmony", "muse", "muse calls", "inside"]


@pytest.mark.parametrize("name", MAKERS)
@examples(400)
@given(data=st.data())
def test_any_cut_gives_the_same(name: str, data: st.DataObject) -> None:
    make = {
        "pipe": pipe,
        "tools": CALLS.parser,
        "harmony": lambda: HARMONY.parser(inside=False),
        "muse": lambda: MUSE.parser(inside=False),
        "muse calls": lambda: Pipe(MUSE, TOOLS["muse"], inside=False),
        "inside": lambda: pipe(inside=True),
    }[name]
    pieces = data.draw(cut(texts))
    text = "".join(pieces)
    parts = run(make, pieces)
    assert parts == run(make, [text]) == run(make, text)
    said = "".join(str(part[-1]) for part in parts)
    if "muse" not in name and '"' not in text and "`" not in text:
        assert not re.search(r"<\|(start|end|return)\|>", content_of(parts))
    assert len(said) <= len(text) * 6  # control characters of arguments become escapes


@examples(300)
@given(pieces=cut(texts), inside=st.booleans())
def test_every_character_is_thought_or_not(pieces: list[str], inside: bool) -> None:
    parser = HARMONY.parser(inside=inside, spans=SPANS)
    settled: list[tuple[int, bool]] = []
    for piece in pieces:
        parser.feed(piece)
        settled += parser.settled()
    parser.finish()
    settled += parser.settled()
    assert sum(characters for characters, _ in settled) == len("".join(pieces))


# Without spaces around it: the tool parser holds one back that may lead to a recipient.
prose = st.text(st.sampled_from("abc é日🙂.,;:!?(){}\"'\\"), max_size=12).map(str.strip)


@examples(300)
@given(data=st.data())
def test_well_formed_messages_come_back_exactly(data: st.DataObject) -> None:
    text, expected = "", []
    for kind in data.draw(st.lists(st.sampled_from("afpc"), max_size=6)):
        said = data.draw(prose)
        begin = START if text or data.draw(st.booleans()) else ""
        match kind:
            case "a":
                text += f"{begin}{ANALYSIS}{said}<|end|>"
                add(expected, "reasoning", said)
            case "c":
                text += f"{begin}{CALL}"
                expected.append(f("f", '{"a": 1}', sum(part[0] == "call" for part in expected)))
            case _:
                text += f"{begin}{FINAL if kind == 'f' else COMMENTARY}{said}<|end|>"
                add(expected, "content", said)
    assert run(pipe, data.draw(cut(st.just(text)))) == expected


def add(expected: Joined, kind: str, text: str) -> None:
    if text and expected and expected[-1][0] == kind:
        expected[-1] = (kind, f"{expected[-1][1]}{text}")
    elif text:
        expected.append((kind, text))


def test_what_closes_thought_leads_on() -> None:
    for form, tools in ((HARMONY, False), (HARMONY, True), (MUSE, False), (MUSE, True)):
        assert isinstance(form, Channels)
        marks = form.marks(tools=tools)
        parser = form.parser(inside=False)
        text = f"{marks.start}hm{marks.close}"
        parts = [*parser.feed(text), *parser.finish()]
        assert [type(part).__name__ for part in parts] == ["ReasoningDelta"]
