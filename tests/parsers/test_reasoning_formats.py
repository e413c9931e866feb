"""Reasoning formats: what is thought and what is the answer."""

import pytest

from enginebay import ReasoningFormat, ReasoningParser, Register, Span, ToolFormat
from enginebay_parsers import REASONING, TOOLS, register_parsers
from enginebay_parsers.reasoning.tag_pair import TagPair
from tests.parsers.cutting import MakeParser, joined, run, same_however_cut

THINK = TagPair("<think>", "</think>")
HEADED = TagPair("<|channel>", "<channel|>", header="thought")
WRAPPED = TagPair("<think>", "</think>", answer=("<response>", "</response>"))
TOOL = Span("<tool_call>", "</tool_call>", opens_with="{[")
TAGS = {
    name: (format.start, format.end)
    for name, format in REASONING.items()
    if isinstance(format, TagPair)
}


def r(text: str) -> tuple[str, str]:
    return ("reasoning", text)


def c(text: str) -> tuple[str, str]:
    return ("content", text)


def maker(
    tags: ReasoningFormat, *, inside: bool = False, spans: tuple[Span, ...] = ()
) -> MakeParser:
    return lambda: tags.parser(inside=inside, spans=spans)


def test_registered() -> None:
    reasoning: Register[ReasoningFormat] = Register("reasoning format")
    tools: Register[ToolFormat] = Register("tool format")
    register_parsers(reasoning, tools)
    assert set(reasoning) == set(REASONING)
    assert set(tools) == set(TOOLS)


# What gives each format away in the chat template of its models.
TEMPLATES = {
    "harmony": "{{ '<|start|>assistant<|channel|>analysis<|message|>' }}",
    "muse": "{{- '<|start|>assistant to=self<|message|>' + message['reasoning_content'] -}}",
    "gemma": "{{- '<|think|>\\n' -}}{{- '<|channel>thought\\n' + thinking_text -}}",
    "solar": '{{- "<|begin|>assistant<|think|>" + message.reasoning + "<|end|>" }}',
    "kimi-k3": "{{- open_tag('think') -}}{{- close_tag('think') -}}",
    "minimax-m3": "{%- set think_begin_token = '<mm:think>' -%}",
    "mistral": "{{- '[THINK]' + block['thinking'] + '[/THINK]' }}",
    "cohere": "<|START_THINKING|>{{ message.tool_plan }}<|END_THINKING|><|START_ACTION|>",
    "seed": '{%- set think_begin_token = "<seed:think>" -%}',
    "hunyuan": "{%- set think_begin_token = '<think{}>'.format(HYTK) %}",
    "hunyuan-a13b": "{{ '<think>\\n\\n</think>\\n<answer>\\n' }}",
    "apertus": "{%- set inner_token = '<|inner_prefix|>' -%}",
    "apriel": "{# whether to include <thinking> #}{{ reasoning + '\\n[BEGIN FINAL RESPONSE]\\n' }}",
    "granite": "Write your thoughts between <think></think> and ... between <response></response>",
    "granite-3.2": "Write your thoughts after 'Here is my thought process:'",
    "exaone-deep": "{{- '<thought>\\n' }}",
    "thinking": "generate these reasoning thoughts between <thinking> and </thinking> XML tags",
    "think": "{%- set content = content.split('</think>')[-1] %}",
}


@pytest.mark.parametrize("name", REASONING)
def test_the_first_format_that_matches_a_template_is_its_own(name: str) -> None:
    matching = [other for other, each in REASONING.items() if each.matches(TEMPLATES[name])]
    assert matching[0] == name
    assert not REASONING[name].matches("{{ messages }}")


PROMPTS = [
    # TAB-6
    ("", False),
    ("<|user|>hi<|assistant|>", False),
    ("<|user|>hi<|assistant|></think>", False),
    # TAB-5
    ("<|user|>hi<|assistant|><think>", True),
    ("<|user|>hi<|assistant|><think>\n", True),
    ("<|assistant|><think>a</think>b<|user|>c<|assistant|><think>\n", True),
    ("<|assistant|></think><think>Let me see: ", True),
    # TAB-4
    ("<|user|>hi<|assistant|><think></think>", False),
    ("<|user|>hi<|assistant|><think>\n\n</think>\n\n", False),
    # TAB-3
    ("<|system|>Think between <think> and </think>.<|user|>hi<|assistant|>", False),
    ("<|system|>Close with </think> what you open with <think>.<|user|>hi<|assistant|>", False),
    # TAB-7
    ("<think>" + "x" * 256, True),
    ("<think>" + "x" * 257, False),
    ("<think>" + "x" * 300 + "<think>", True),
    # TAB-8
    ("<think><a>", False),
    ("<think>\n<" + "x" * 30 + ">", False),
    ("<think>\n<" + "x" * 31 + ">", True),
    ("<think>a < b and b > a", True),
    ("<think>a <\n>", True),
    ("<think>[INST]", True),
]


@pytest.mark.parametrize(("prompt", "inside"), PROMPTS)
def test_starts_inside(prompt: str, inside: bool) -> None:
    # TAB-1
    assert THINK.starts_inside(prompt) is inside


def test_the_delimiters_are_those_of_the_start_tag() -> None:
    # TAB-8
    assert REASONING["mistral"].starts_inside("[/INST][THINK] <think>")
    assert not REASONING["mistral"].starts_inside("[THINK] [INST]")


@pytest.mark.parametrize(
    ("name", "behind", "inside"),
    [
        ("apriel", "", True),
        ("apriel", "First, Hello\nand Hi\n", True),
        ("apriel", "a <\n", True),
        ("apriel", "hm\n<|begin_user|>", False),
        ("granite-3.2", " How: this\nH:", True),
        ("granite-3.2", "<|start_of_role|>", False),
    ],
)
def test_letters_are_no_delimiters(name: str, behind: str, inside: bool) -> None:
    # TAB-5, TAB-8
    form = REASONING[name]
    assert isinstance(form, TagPair)
    assert form.starts_inside(f"<|begin_assistant|>\n{form.start}{behind}") is inside


SPLITS: list[tuple[str, list[tuple[str, str]]]] = [
    ("", []),
    ("just text", [c("just text")]),
    ("<think>a</think>b", [r("a"), c("b")]),
    # TAB-65, TAB-66, TAB-67, ANS-3: after reasoning has ended, its tags are text
    ("a<think>b</think>c", [c("a"), r("b"), c("c")]),
    ("<think>b</think>c<think>d</think>e", [r("b"), c("c<think>d</think>e")]),
    ("<think>b</think>the tag </think> ends", [r("b"), c("the tag </think> ends")]),
    ("\n</think>\n\nHi", [c("\n\n\nHi")]),
    # TAB-63
    ("<think></think>", []),
    ("<think></think><think>x</think></think>y", [c("<think>x</think></think>y")]),
    ("<think>a<think>b</think>c", [r("ab"), c("c")]),
    ("never closed<think>a", [c("never closed"), r("a")]),
    ("unopened</think>answer", [c("unopened</think>answer")]),
    # What only looks like a tag is text, at the end too.
    ("a<b<<think>>c</think", [c("a<b<"), r(">c</think")]),
    (
        "<thin<think>x</thi</think>y<thinks></ think>",
        [c("<thin"), r("x</thi"), c("y<thinks></ think>")],
    ),
    ("a <", [c("a <")]),
    # White space is the collector's.
    ("<think>\nx\n</think>\n\ny", [r("\nx\n"), c("\n\ny")]),
    # In code it is something one writes about; test_code has more.
    ("Write `<think>` and `</think>`.", [c("Write `<think>` and `</think>`.")]),
    ("<think>it ends with `</think>`</think>ok", [r("it ends with `</think>`"), c("ok")]),
    ("`<think>x`</think>`", [c("`<think>x`</think>`")]),
    ("<think>a`</think>", [r("a`")]),
    ("<think>a`</think>b", [r("a`"), c("b")]),
    ("```<think>a</think>```", [c("```<think>a</think>```")]),
]


@pytest.mark.parametrize(("text", "parts"), SPLITS)
def test_splits(text: str, parts: list[tuple[str, str]]) -> None:
    assert same_however_cut(maker(THINK), text) == parts


@pytest.mark.parametrize("name", TAGS)
def test_every_registered_format_splits(name: str) -> None:
    start, end = TAGS[name]
    text = f"a{start}b{end}c{start}d{start[:-1]}"
    parts = [c("a"), r("b"), c(f"c{start}d{start[:-1]}")]
    assert same_however_cut(maker(REASONING[name]), text) == parts


ANSWERS = [
    ("<think>a</think><response>b</response>", [r("a"), c("b")]),
    # Thought is over where the answer begins, whatever is missing.
    ("<think>a<response>b</response>", [r("a"), c("b")]),
    ("<response>b</response> c", [c("b c")]),
    ("<think>a</think><response>b<think>c</think>d", [r("a"), c("b<think>c</think>d")]),
    ("<think>`<response>`</think><respons", [r("`<response>`"), c("<respons")]),
]


@pytest.mark.parametrize(("text", "parts"), ANSWERS)
def test_tags_of_the_answer(text: str, parts: list[tuple[str, str]]) -> None:
    assert same_however_cut(maker(WRAPPED), text) == parts


INSIDE = [
    ("a</think>b", [r("a"), c("b")]),
    ("<think>a</think>b", [r("a"), c("b")]),
    ("</think>b", [c("b")]),
    ("no end", [r("no end")]),
]


@pytest.mark.parametrize(("text", "parts"), INSIDE)
def test_starting_inside(text: str, parts: list[tuple[str, str]]) -> None:
    assert same_however_cut(maker(THINK, inside=True), text) == parts


HEADERS = [
    # TAB-62
    ("<|channel>thought\na<channel|>b", [r("a"), c("b")]),
    ("x<|channel>thought\na<|channel>thought\nb", [c("x"), r("ab")]),
    ("<|channel>thought\n<channel|>b", [c("b")]),
    ("<|channel>thought<channel|>b", [c("b")]),
    ("<|channel>thought", []),
    ("<|channel>thought\nthought\na", [r("thought\na")]),
    ("<|channel>though<channel|>b", [r("though"), c("b")]),
    ("<|channel>thoughtful<channel|>b", [r("thoughtful"), c("b")]),
    ("<|channel>a thought\n<channel|>", [r("a thought\n")]),
    ("<|channel><|channel>thought\na", [r("a")]),
    ("<|channel>thou<|channel>thought\na", [r("thoua")]),
    ("thought\na", [c("thought\na")]),
]


@pytest.mark.parametrize(("text", "parts"), HEADERS)
def test_headers(text: str, parts: list[tuple[str, str]]) -> None:
    assert same_however_cut(maker(HEADED), text) == parts


def test_a_header_when_the_prompt_has_the_start_tag() -> None:
    # TAB-62
    make = maker(HEADED, inside=True)
    assert same_however_cut(make, "thought\na<channel|>b") == [r("a"), c("b")]
    assert same_however_cut(make, "a thought<channel|>b") == [r("a thought"), c("b")]


CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
QUOTING = (
    '<tool_call>{"name": "f", "arguments": {"a": "</tool_call></think>\\"{<think>"}}</tool_call>'
)
SPANS = [
    # TAB-69
    (f"<think>a{CALL}b</think>c", [r("a"), c(CALL), r("b"), c("c")]),
    (f"<think>a</think>{CALL}b<think>c", [r("a"), c(f"{CALL}b<think>c")]),
    # TAB-70
    (
        "<think><tool_call>{<think></think>}</tool_call>b",
        [c("<tool_call>{<think></think>}</tool_call>"), r("b")],
    ),
    ("<tool_call>{<think>}</tool_call>b", [c("<tool_call>{<think>}</tool_call>b")]),
    (f"<think>a{QUOTING}b", [r("a"), c(QUOTING), r("b")]),
    (f"{QUOTING}b</think>", [c(f"{QUOTING}b</think>")]),
    ('<think><tool_call>[{}] don"t</tool_call>b', [c('<tool_call>[{}] don"t</tool_call>'), r("b")]),
    # Prose about calls.
    ("<think>I write <tool_call> then</think>x", [r("I write <tool_call> then"), c("x")]),
    ("<think>then </tool_call> so</think>", [r("then </tool_call> so")]),
    ("<think><tool_call></think>{", [r("<tool_call>"), c("{")]),
    ("<think><tool_call> \n <tool_call> {", [r("<tool_call> \n "), c("<tool_call> {")]),
    ("<think>`<tool_call>`{</think>x", [r("`<tool_call>`{"), c("x")]),
    # Cut off.
    ("<think>a<tool_call>", [r("a<tool_call>")]),
    ("<think>a<tool_call> \n", [r("a<tool_call> \n")]),
    ("<think>a<tool_call> \n{x", [r("a"), c("<tool_call> \n{x")]),
    ("<think>a<tool_call>{x</tool_", [r("a"), c("<tool_call>{x</tool_")]),
]


@pytest.mark.parametrize(("text", "parts"), SPANS)
def test_spans(text: str, parts: list[tuple[str, str]]) -> None:
    assert same_however_cut(maker(THINK, spans=(TOOL,)), text) == parts


OUTSIDE_ONLY = [
    # VLLM-60
    (f"<think>a{CALL}b</think>c", [r(f"a{CALL}b"), c("c")]),
    (f"<think>a</think>{CALL}", [r("a"), c(CALL)]),
    # A tag in the arguments of a call is still text.
    (f"<think>a</think>{QUOTING}b", [r("a"), c(f"{QUOTING}b")]),
]


@pytest.mark.parametrize(("text", "parts"), OUTSIDE_ONLY)
def test_spans_outside_of_thought_only(text: str, parts: list[tuple[str, str]]) -> None:
    def make() -> ReasoningParser:
        return THINK.parser(inside=False, spans=(TOOL,), spans_in_thought=False)

    assert same_however_cut(make, text) == parts


def test_a_span_of_anything() -> None:
    spans = (Span("<a>", "</a>"), Span("[CALLS]", ""))
    make = maker(THINK, inside=True, spans=spans)
    text = '1<a>"</think></a>2<think>3[CALLS]</a>4</think>'
    parts = [r("1"), c('<a>"</think></a>'), r("23"), c("[CALLS]</a>4</think>")]
    assert same_however_cut(make, text) == parts


HELD = [
    ("a < b", ["a", " ", "", "< ", "b"]),
    ("x<thy", ["x", "", "", "", "<thy"]),
    ("<think>hi</think>x", [*[""] * 7, "h", "i", *[""] * 8, "x"]),
    ("`<think>`.", ["", "`", *[""] * 7, "<think>`."]),
    ("```a\nb<c\n```\n<d", [*[""] * 3, "```a", "\n", *"b<c\n```\n", "", "<d"]),
    ("<tool_call> {x", [*[""] * 12, "<tool_call> {", "x"]),
]


@pytest.mark.parametrize(("text", "shown"), HELD)
def test_text_is_held_back_only_while_it_could_become_a_tag(text: str, shown: list[str]) -> None:
    parser = THINK.parser(inside=False, spans=(TOOL,))
    assert ["".join(str(part[1]) for part in joined(parser.feed(char))) for char in text] == shown
    assert parser.finish() == []


def test_parsers_share_nothing() -> None:
    # VLLM-65
    one, other = THINK.parser(inside=False), THINK.parser(inside=False)
    one.feed("<think>a<")
    assert run(lambda: other, ["b"]) == [c("b")]
