"""What in a chat template tells that its model writes a format: lines out of templates."""

import pytest

from parsers import TOOLS
from tests.parsers.tools.written import ALL
from tests.support import REPOSITORY

LINES = {
    "hermes": [
        r'{{- "<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}" }}',
        '{{- "<tool_call>\n" }}\n{{- \'{"name": <function-name>, "arguments": <args-dict>}\n\' }}',
        'użyj formatu <tool_call>{"name": "nazwa_narzędzia", "arguments": {}}</tool_call>',
    ],
    "longcat": [r"'<longcat_tool_call>\n{\"name\": <function-name>, ...}\n</longcat_tool_call>'"],
    "apriel": [
        """'\\n<tool_calls>[' {"name": ... ', "id": "' + tool_call['id'] + '"' ']</tool_calls>'"""
    ],
    "jamba": [r"'<tool_calls>[\n' ... '\n]</tool_calls>'", r"'<tool_calls>\n[{\"name\": '"],
    "minimax-m1": [r"'<tool_calls>\n{\"name\": <tool-name>}\n</tool_calls>'"],
    "nemotron": ["'<TOOLCALL>[' ... ']</TOOLCALL>'"],
    "apertus": ["set tool_calls_token = '<|tools_prefix|>' set end = '<|tools_suffix|>'"],
    "cohere": ['<|START_ACTION|>[\n {"tool_call_id": "{{ id }}"}\n]<|END_ACTION|>'],
    "command-r": [r"{{- '\nAction:\n```json\n[\n' }}"],
    "phi-4-mini": ["'<|tool|>' + message['tools'] + '<|/tool|>'"],
    "granite": ["respond only with <|tool_call|> followed by a JSON list of tools used"],
    "granite-20b": ["<function_call> {{ call | tojson }}"],
    "gigachat3": [
        'function_call="<|function_call|>" role_sep="<|role_sep|>\\n"',
        "{'role': 'function call'} role_sep=\"<|role_sep|>\\n\"",
    ],
    "firefunction": ["+ ' functools[' + tool.calls | join(', ') + ']'"],
    "internlm": ["'<|action_start|><|plugin|>\\n' ... '<|action_end|>'"],
    "pangu": ["'[unused11][' ... '][unused12]'"],
    "mistral-list": ['{{- "[TOOL_CALLS][" }}'],
    "llama3-json": ['Respond in the format {"name": function name, "parameters": dictionary of'],
    "xlam": ["make calls in a single JSON array: "],
    "mistral": [
        "'[TOOL_CALLS]' + name + '[CALL_ID]' + id + '[ARGS]' + arguments",
        "'[TOOL_CALLS]' + name + '[ARGS]' + arguments",
    ],
    "kimi-k2": ["<|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>{{ a }}<|tool_call_end|>"],
    "deepseek-v3": [
        "'<｜tool▁call▁begin｜>' + type + '<｜tool▁sep｜>' + name + '\\n' + '```json' + '\\n'"
    ],
    "deepseek-v3.1": ["'<｜tool▁call▁begin｜>'+ name + '<｜tool▁sep｜>' + arguments | tojson"],
    "solar": ["'<|tool_call:begin|>' + id + '<|tool_call:name|>' + '<|tool_call:end|>'"],
    "functionary-v3.1": ['<function=example_function_name>{"example_name": "x"}</function>'],
    "functionary-v3.2": [
        "{{ '>>>all\\n' + message['content'] }}",
        "\\n>>>${recipient}\\n${content}",
    ],
    "glm-4": ["[gMASK]<sop>{% for %}<|observation|>\\n{{ item['content'] }}<|assistant|>"],
}
OTHERS = [
    "",
    "{{ messages }}",
    r"'<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\n'",
    r"<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n[gMASK]<sop> <|observation|>",
    "{{ '\\n<tool_call>' + tc.name }}",
    "{{ '<tool_call>' ~ tool_call['name'] }}<arg_key>",
    "<minimax:tool_call>",
    "<seed:tool_call><function=example_function_name>",
    "'<|tool_call>call:' + function['name'] + '{'",
    "<|tool_call_start|>[' + calls + ']<|tool_call_end|>",
    "<|start|>assistant<|channel|>commentary to=functions.",
    "<｜DSML｜function_calls>",
]


def test_every_format_is_tested() -> None:
    assert set(LINES) == set(ALL)


@pytest.mark.parametrize(("name", "line"), [(name, line) for name in LINES for line in LINES[name]])
def test_the_evidence_of_one_is_that_of_no_other(name: str, line: str) -> None:
    assert next(other for other in ALL if TOOLS[other].matches(line)) == name
    assert next(other for other in TOOLS if TOOLS[other].matches(line)) == name


def test_the_docs_list_every_format() -> None:
    listed = (REPOSITORY / "docs" / "reference" / "tools.md").read_text(encoding="utf-8")
    assert not [name for name in TOOLS if f"`{name}`" not in listed]


@pytest.mark.parametrize("line", OTHERS)
def test_no_evidence(line: str) -> None:
    assert not [name for name in ALL if TOOLS[name].matches(line)]
