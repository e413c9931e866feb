"""What is special about single formats whose arguments are JSON."""

import json
import re

import pytest

from enginebay import ContentDelta, Parser, ToolCallDelta
from enginebay_parsers import TOOLS
from enginebay_parsers.json import calls_reader
from enginebay_parsers.stream.splitter import Piece
from tests.parsers.cutting import Joined, run, same_however_cut
from tests.parsers.tools.written import ALL

NINE = re.compile(r"[A-Za-z0-9]{9}")


def c(text: str) -> tuple[object, ...]:
    return ("content", text)


def call(index: int, name: str, arguments: str = "{}", *id: str) -> tuple[object, ...]:
    return ("call", index, name, arguments, *id)


CASES: list[tuple[str, str, Joined]] = [
    # Other spellings of the same thing.
    ("granite", '<tool_call>[{"name":"f","arguments":{}}]', [call(0, "f")]),
    ("phi-4-mini", 'functools[{"name":"f","arguments":{"a":1}}]', [call(0, "f", '{"a":1}')]),
    ("phi-4-mini", '<|tool_call|>[{"name":"f"}]', [call(0, "f")]),
    (
        "command-r",
        'Action: ```json\n[{"tool_name":"f","parameters":{}}]\n```x',
        [call(0, "f"), c("x")],
    ),
    ("gigachat3", '<|function_call|>{"name":"f","arguments":{}}', [call(0, "f")]),
    ("gigachat3", "<|message_sep|>\n\nassistant", [c("<|message_sep|>\n\nassistant")]),
    ("jamba", '<tool_calls>\n{"name":"f"}\n</tool_calls>', [call(0, "f")]),
    ("nemotron", '<TOOLCALL>{"name":"f"}</TOOLCALL>', [call(0, "f")]),
    # Ids: VLLM-99
    (
        "cohere",
        '<|START_ACTION|>[{"tool_name":"f","tool_call_id":7,"parameters":{}}]<|END_ACTION|>',
        [call(0, "f", "{}", "7")],
    ),
    (
        "cohere",
        '<|START_ACTION|>[{"tool_name":"f","parameters":{},"tool_call_id":"7"},'
        '{"tool_call_id":"","tool_name":"g"},{"tool_call_id":{},"tool_name":"h"}',
        [call(0, "f"), call(1, "g"), call(2, "h")],
    ),
    (
        "cohere",
        '<|START_ACTION|>[{"tool_call_id":"0","tool_name":"f"},{"tool_call_id":"0","tool_name":"f"}',
        [call(0, "f", "{}", "0"), call(1, "f")],
    ),
    (
        "mistral-list",
        '[TOOL_CALLS][{"id":"abcdefgh1","name":"f","arguments":{}},'
        '{"id":"abcdefgh","name":"f"},{"id":"abcdefgh-","name":"f"}]',
        [call(0, "f", "{}", "abcdefgh1"), call(1, "f"), call(2, "f")],
    ),
    (
        "mistral-list",
        '[TOOL_CALLS][{"name":"f","arguments":{},"id":"abcdefgh1"}]',
        [call(0, "f")],
    ),
    ("mistral", "[TOOL_CALLS]f[CALL_ID]abc[ARGS]{}", [call(0, "f")]),
    ("mistral", "[TOOL_CALLS]f[CALL_ID][ARGS]{}", [call(0, "f")]),
    ("mistral", "[TOOL_CALLS]f[CALL_ID]abcdefgh1{}", [call(0, "f", "{}", "abcdefgh1")]),
    # The mark before the arguments is a special token, which some servers leave out.
    (
        "mistral",
        '[TOOL_CALLS]f{"a":1}[TOOL_CALLS]g[ARGS]{}',
        [call(0, "f", '{"a":1}'), call(1, "g")],
    ),
    (
        "mistral",
        "[TOOL_CALLS] f [ARGS] {}\n[TOOL_CALLS]g[ARGS]{} x",
        [call(0, "f"), call(1, "g"), c(" x")],
    ),
    ("mistral", "[TOOL_CALLS]f[ARGS]", [call(0, "f", "")]),
    ("mistral", "[TOOL_CALLS]f[ARGS][TOOL_CALLS]g[ARGS]{}", [call(0, "f"), call(1, "g")]),
    (
        "mistral",
        '[TOOL_CALLS]f[ARGS]{"a":"b[TOOL_CALLS]g[ARGS]{}',
        [call(0, "f", '{"a":"b[TOOL_CALLS]g[ARGS]{}')],
    ),
    ("mistral", "[TOOL_CALLS]f", [c("[TOOL_CALLS]f")]),
    ("mistral", "[TOOL_CALLS][ARGS]{}", [c("[TOOL_CALLS][ARGS]{}")]),
    ("mistral", "[TOOL_CALLS]two words[ARGS]{}", [c("[TOOL_CALLS]two words[ARGS]{}")]),
    ("mistral", "[TOOL_CALLS]f[ARGS]1", [c("[TOOL_CALLS]f[ARGS]1")]),
    ("mistral", f"[TOOL_CALLS]{'f' * 300}[ARGS]{{}}", [c(f"[TOOL_CALLS]{'f' * 300}[ARGS]{{}}")]),
    # Kimi: the section may be missing, ids may be of other forms.
    (
        "kimi-k2",
        "<|tool_call_begin|>f:3<|tool_call_argument_begin|>{}<|tool_call_end|>x",
        [call(0, "f", "{}", "f:3"), c("x")],
    ),
    (
        "kimi-k2",
        "<|tool_calls_section_begin|>\n<|tool_call_begin|> functions.a.b:12 "
        "<|tool_call_argument_begin|> {} <|tool_call_end|>\n<|tool_calls_section_end|>\nx",
        [call(0, "a.b", "{}", "functions.a.b:12"), c("\nx")],
    ),
    (
        "kimi-k2",
        "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
        [call(0, "f", "{}", "functions.f:0"), call(1, "f")],
    ),
    (
        "kimi-k2",
        "<|tool_calls_section_begin|>x<|tool_calls_section_end|>",
        [c("<|tool_calls_section_begin|>x<|tool_calls_section_end|>")],
    ),
    (
        "kimi-k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>f:0<|tool_call_argument_begin|>"
        "<|tool_call_end|>x<|tool_calls_section_end|>",
        [call(0, "f", "{}", "f:0"), c("x")],
    ),
    # DeepSeek: the fence may be missing or unnamed.
    (
        "deepseek-v3",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n{}<｜tool▁call▁end｜>",
        [call(0, "f")],
    ),
    (
        "deepseek-v3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```\n{}\n```\n"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>\n\n`x`",
        [call(0, "f"), c("\n\n`x`")],
    ),
    (
        "deepseek-v3",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```xml\n{}",
        [c("<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```xml\n{}")],
    ),
    ("deepseek-v3", "<｜tool▁call▁begin｜>f\n{}", [c("<｜tool▁call▁begin｜>f\n{}")]),
    # Functionary: to everybody, to a function.
    ("functionary-v3.2", "all\nHello\n>>> 1 + 1\n2", [c("Hello\n>>> 1 + 1\n2")]),
    ("functionary-v3.2", 'all\n{"a": 1}', [c('{"a": 1}')]),
    (
        "functionary-v3.2",
        'all\nLet me see.>>>f\n{"a": 1}>>>all\nSo.',
        [c("Let me see."), call(0, "f", '{"a": 1}'), c("So.")],
    ),
    ("functionary-v3.2", "all", [c("all")]),
    ("functionary-v3.2", "allow\nme", [c("allow\nme")]),
    ("functionary-v3.1", "<function=f>{}</function>", [call(0, "f")]),
    ("functionary-v3.1", "<function=f>\n<parameter=a>", [c("<function=f>\n<parameter=a>")]),
    # Calls without tags: only where the answer begins with them.
    ("llama3-json", ' \n{"name": "f", "parameters": {}}', [call(0, "f")]),
    ("llama3-json", '<|python_tag|>{"name": "f", "parameters": {}}', [call(0, "f")]),
    (
        "llama3-json",
        'So: {"name": "f", "parameters": {}}',
        [c('So: {"name": "f", "parameters": {}}')],
    ),
    ("llama3-json", 'So: <|python_tag|>{"name": "f"}', [c("So: "), call(0, "f")]),
    ("llama3-json", '{"type": "function", "function": "f", "parameters": {}}', [call(0, "f")]),
    (
        "llama3-json",
        '{"name": "f", "parameters": {}};\n{"name": "g", "parameters": {"a": 1}}',
        [call(0, "f"), call(1, "g", '{"a": 1}')],
    ),
    ("llama3-json", '{"name": "f"}\n\nSo {"name": "g"}', [call(0, "f"), c('\n\nSo {"name": "g"}')]),
    ("llama3-json", '{"answer": 42, "name": "f"}', [c('{"answer": 42, "name": "f"}')]),
    ("llama3-json", '{"name": "f", "age": 3}', [call(0, "f")]),
    ("llama3-json", '<|python_tag|>print("hi")', [c('<|python_tag|>print("hi")')]),
    ("llama3-json", "[1, 2]", [c("[1, 2]")]),
    ("llama3-json", "", []),
    ("llama3-json", " ", [c(" ")]),
    ("xlam", '[{"name": "f", "arguments": {}}, {"name": "g"}]', [call(0, "f"), call(1, "g")]),
    ("xlam", '{"name": "f", "arguments": {}}', [call(0, "f")]),
    ("glm-4", "f\n{}", [call(0, "f")]),
    ("glm-4", "\nf\n{}", [call(0, "f")]),
    ("glm-4", "Sure\nthing", [c("Sure\nthing")]),
    ("glm-4", "Sure, here:\n{}", [c("Sure, here:\n{}")]),
    ("glm-4", "f\n", [c("f\n")]),
    # Apertus: the name is the key.
    ("apertus", '<|tools_prefix|>[{"f": {}}]<|tools_suffix|>', [call(0, "f")]),
    ("apertus", '<|tools_prefix|>[{"f": 1}]', [c('<|tools_prefix|>[{"f": 1}]')]),
    ("apertus", '<|tools_prefix|>[{" ": {}}]', [c('<|tools_prefix|>[{" ": {}}]')]),
    ("apertus", '<|tools_prefix|>[{"f": {"a": 1}, "g": {}}]', [call(0, "f", '{"a": 1}')]),
    ("apertus", "<|tools_prefix|>[]<|tools_suffix|>", [c("<|tools_prefix|>[]<|tools_suffix|>")]),
    # Nemotron puts arguments in strings, too.
    (
        "nemotron",
        '<TOOLCALL>[{"name": "f", "arguments": "{\\"a\\": 1}"}]',
        [call(0, "f", '{"a": 1}')],
    ),
]


@pytest.mark.parametrize(("name", "text", "parts"), CASES)
def test_cases(name: str, text: str, parts: Joined) -> None:
    # TAB-50, TAB-55, VLLM-56
    assert same_however_cut(TOOLS[name].parser, text) == parts


TURN = ("<|START_OF_TURN_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>")
COMMAND_R = [
    (f"{TURN[0]}{TURN[1]}So.{TURN[2]}", [c("So.")]),
    (f"I will.\n{ALL['command-r'].text(('f', '{}'))}{TURN[2]}", [c("I will.\n"), call(0, "f")]),
    (f"{ALL['command-r'].text(('f', '{}'))}\n{TURN[2]}{TURN[0]}{TURN[1]}x", [call(0, "f"), c("x")]),
    # Where a call is not over, or is none.
    (
        f'Action:\n```json\n[{{"tool_name": "f", "parameters": {{"a": {TURN[2]}',
        [call(0, "f", '{"a": ')],
    ),
    (f"Action:\n```json\n{TURN[2]}x", [c("Action:\n```json\nx")]),
    (f"Action:\n```json\n[{{{TURN[2]}x", [c("Action:\n```json\n[{x")]),
    # In a string it is text, and so it is between backticks.
    (
        ALL["command-r"].text(("f", json.dumps({"a": TURN[2]}))),
        [call(0, "f", json.dumps({"a": TURN[2]}))],
    ),
    (f"Write `{TURN[2]}`.", [c(f"Write `{TURN[2]}`.")]),
]


@pytest.mark.parametrize(("text", "parts"), COMMAND_R)
def test_turn_tokens_are_no_content(text: str, parts: Joined) -> None:
    # TAB-55, TAB-63
    assert same_however_cut(TOOLS["command-r"].parser, text) == parts


def answer(name: str) -> Parser:
    parser = TOOLS[name].answer_parser()
    assert parser
    return parser


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("functionary-v3.2", "all\nHello", "Hello"),
        ("functionary-v3.2", "all\nLet me see.>>>all\nSo.", "Let me see.So."),
        ("functionary-v3.2", "all is well", "all is well"),
        ("functionary-v3.2", 'f\n{"a": 1}', 'f\n{"a": 1}'),
        ("functionary-v3.2", "", ""),
        ("command-r", f"{TURN[1]}So.{TURN[2]}", "So."),
        ("command-r", ALL["command-r"].text(("f", "{}")), ALL["command-r"].text(("f", "{}"))),
    ],
)
def test_what_stands_around_an_answer_goes_without_tools_too(
    name: str, text: str, said: str
) -> None:
    # TAB-53
    assert same_however_cut(lambda: answer(name), text) == ([c(said)] if said else [])


def test_most_formats_write_nothing_around_an_answer() -> None:
    assert TOOLS["hermes"].answer_parser() is None
    assert TOOLS["qwen3-coder"].answer_parser() is None


@pytest.mark.parametrize("name", ["mistral", "mistral-list"])
def test_mistral_ids(name: str) -> None:
    # VLLM-99
    ids = {TOOLS[name].new_call_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(NINE.fullmatch(id) for id in ids)


def test_other_ids_are_those_of_openai() -> None:
    assert TOOLS["hermes"].new_call_id().startswith("call_")


def test_an_answer_that_is_json_is_not_held_back() -> None:
    """Where calls have no tag, what cannot become one is let go at once."""
    parser = TOOLS["llama3-json"].parser({"f": {}})
    assert parser.feed('{"answer') == []
    assert parser.feed('":') == [ContentDelta('{"answer":')]
    assert parser.feed(" 1") == [ContentDelta(" 1")]
    parser = TOOLS["llama3-json"].parser({"f": {}})
    assert parser.feed('{"name": "Ada"') == [ContentDelta('{"name": "Ada"')]
    parser = TOOLS["glm-4"].parser({"f": {}})
    assert parser.feed("Sure") == []
    assert parser.feed(",") == [ContentDelta("Sure,")]
    parser = TOOLS["functionary-v3.2"].parser({"f": {}})
    assert parser.feed("al") == []
    assert parser.feed("l\n") == []
    assert parser.feed("Hi") == [ContentDelta("Hi")]


def test_the_id_comes_with_the_name() -> None:
    parser = TOOLS["cohere"].parser()
    assert parser.feed('<|START_ACTION|>[{"tool_name": "f", ') == []
    assert parser.feed('"tool_call_id": "3"') == [ToolCallDelta(0, name="f", id="3")]
    parser = TOOLS["cohere"].parser()
    assert parser.feed('<|START_ACTION|>[{"tool_name": "f", ') == []
    name, arguments = parser.feed('"parameters": {')
    assert (name, arguments) == (ToolCallDelta(0, name="f"), ToolCallDelta(0, arguments="{"))


HOSTILE = {
    "hermes": '<tool_call>{"a":[\\"',
    "mistral": '[TOOL_CALLS]f[ARGS]{\\"',
    "mistral-list": '[TOOL_CALLS][{"a":[\\"',
    "llama3-json": '<|python_tag|>{"arguments":[\\"',
    "kimi-k2": "<|tool_calls_section_begin|><|tool_call_begin|>",
    "deepseek-v3": '<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n{\\"',
    "functionary-v3.2": ">>>f\n",
    "command-r": 'Action:\n```json[{"a":"```',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_the_work_grows_with_the_text_and_no_faster(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often a text seems to begin a call, each piece of it is read a few times at most."""
    made = 0

    def piece(*args: object) -> Piece:
        nonlocal made
        made += 1
        return Piece(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(calls_reader, "Piece", piece)
    counts = []
    for n in (100, 200, 400):
        made = 0
        text = HOSTILE[name] * n + '" x'
        run(TOOLS[name].parser, [text])
        counts.append(made)
    assert counts[1] < 2.2 * counts[0] + 500
    assert counts[2] < 2.2 * counts[1] + 500


@pytest.mark.parametrize("name", ["hermes", "mistral", "deepseek-v3"])
def test_a_long_argument(name: str) -> None:
    arguments = json.dumps({"a": "x\n" * 50_000})
    text = ALL[name].text(("f", arguments))
    pieces = [text[i : i + 7] for i in range(0, len(text), 7)]
    assert run(TOOLS[name].parser, pieces) == ALL[name].parts(("f", arguments))


def test_many_tags_in_a_string() -> None:
    """A string is believed to go on behind many tags: a call may write a file about tool calls."""
    text = "<tool_call></tool_call>" * 100
    arguments = json.dumps({"text": text})
    whole = ALL["hermes"].text(("f", arguments), ("g", "{}"))
    assert run(TOOLS["hermes"].parser, whole) == ALL["hermes"].parts(("f", arguments), ("g", "{}"))
