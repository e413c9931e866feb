"""What in a chat template tells that its model writes a format: its example, or other lines."""

import re

import pytest

from enginebay_parsers import TOOLS
from tests.parsers.tools.written import ALL
from tests.support import REPOSITORY

# Lines out of templates that say it in other words than the example.
LINES = {
    "hermes": [
        r'{{- "<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}" }}',
        '{{- "<tool_call>\n" }}\n{{- \'{"name": <function-name>, "arguments": <args-dict>}\n\' }}',
        'użyj formatu <tool_call>{"name": "nazwa_narzędzia", "arguments": {}}</tool_call>',
    ],
    "apriel": [
        """'\\n<tool_calls>[' {"name": ... ', "id": "' + tool_call['id'] + '"' ']</tool_calls>'"""
    ],
    "jamba": [r"'<tool_calls>[\n' ... '\n]</tool_calls>'", r"'<tool_calls>\n[{\"name\": '"],
    "minimax-m1": [r"'<tool_calls>\n{\"name\": <tool-name>}\n</tool_calls>'"],
    "command-r": [r"{{- '\nAction:\n```json\n[\n' }}"],
    "phi-4-mini": ["'<|tool|>' + message['tools'] + '<|/tool|>'"],
    "granite": ["respond only with <|tool_call|> followed by a JSON list of tools used"],
    "gigachat3": [
        'function_call="<|function_call|>" role_sep="<|role_sep|>\\n"',
        "{'role': 'function call'} role_sep=\"<|role_sep|>\\n\"",
    ],
    "llama3-json": ['Respond in the format {"name": function name, "parameters": dictionary of'],
    "xlam": ["make calls in a single JSON array: "],
    "mistral": [
        "'[TOOL_CALLS]' + name + '[CALL_ID]' + id + '[ARGS]' + arguments",
        "'[TOOL_CALLS]' + name + '[ARGS]' + arguments",
    ],
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


@pytest.mark.parametrize("name", TOOLS)
def test_the_example_of_one_is_the_evidence_of_no_other(name: str) -> None:
    form = TOOLS[name]
    found = [other for other in TOOLS if TOOLS[other].matches(form.example)]
    # Calls that need no tags are told by what a template says to the model.
    bare = getattr(form, "bare", False) or getattr(form, "may_be_bare", False)
    assert found[:1] == ([] if bare else [name])


@pytest.mark.parametrize(("name", "line"), [(name, line) for name in LINES for line in LINES[name]])
def test_the_evidence_of_one_is_that_of_no_other(name: str, line: str) -> None:
    assert next(other for other in ALL if TOOLS[other].matches(line)) == name
    assert next(other for other in TOOLS if TOOLS[other].matches(line)) == name


def test_the_docs_name_formats_that_exist() -> None:
    listed = (REPOSITORY / "docs" / "reference" / "tools.md").read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| ([^|]*`[^|]*) \|", listed)
    named = {name for row in rows for name in re.findall("`([a-z0-9.-]+)`", row)}
    assert len(named) > 30
    assert not named - set(TOOLS) - {"tools", "tool_choice", "auto", "required", "none"}


@pytest.mark.parametrize("line", OTHERS)
def test_no_evidence(line: str) -> None:
    assert not [name for name in ALL if TOOLS[name].matches(line)]
