"""What a chat template writes for calls in the history is read back as the same calls.

That is what models learn to write. The templates are those that llama.cpp ships.
"""

import json
from functools import partial

import pytest

from enginebay import Schemas
from enginebay.models.template.template import ChatTemplate
from enginebay_parsers import TOOLS
from enginebay_parsers.python.literal_calls import LiteralCalls
from enginebay_parsers.xml.element_calls import ElementCalls
from enginebay_parsers.xml.xml_calls import XmlCalls
from tests.llama_templates import llama_templates
from tests.parsers.cutting import calls_of, run

FAMILIES = (XmlCalls, LiteralCalls, ElementCalls)
ARGUMENTS: dict[str, object] = {
    "code": "def f(a):\n\treturn a < 1 and \"x\" > 'y'  # \\n & <b>\n",
    "zip": "02134",
    "no": "false",
    "empty": "",
    "count": 5,
    "ratio": -1.5,
    "really": True,
    "place": {"city": "Zürich", "zip": "02134", "tags": ["a", "b 'c'"], "deep": {"x": [1, [2]]}},
    "list": [1, {"k": False, "s": "1"}],
    "words": ["1", "two\nlines"],
}
STRING = {"type": "string"}
SCHEMA = {
    "type": "object",
    "properties": {
        "code": STRING,
        "zip": STRING,
        "no": {"$ref": "#/$defs/text"},
        "empty": STRING,
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "really": {"type": "boolean"},
        "place": {
            "type": "object",
            "properties": {
                "city": STRING,
                "zip": STRING,
                "tags": {"type": "array", "items": STRING},
                "deep": {
                    "type": "object",
                    "properties": {
                        "x": {"type": "array", "items": {"anyOf": [
                            {"type": "integer"},
                            {"type": "array", "items": {"type": "integer"}},
                        ]}},
                    },
                },
            },
        },
        "list": {"type": "array", "items": {"anyOf": [
            {"type": "integer"},
            {"type": "object", "properties": {"k": {"type": "boolean"}, "s": STRING}},
        ]}},
        "words": {"type": "array", "items": STRING},
    },
    "$defs": {"text": STRING},
}  # fmt: skip
SCHEMAS: Schemas = {"f": SCHEMA, "g": {"type": "object", "properties": {}}}
CALLS = [("f", ARGUMENTS), ("g", {}), ("f", {"count": 12, "zip": "x"})]
# These write no calls.
SILENT = {"LFM2-8B-A1B", "LFM2.5-Instruct"}


def of_families() -> list[tuple[str, str]]:
    """The templates of these families, each with the name of its format."""
    found = []
    for template, source in sorted(llama_templates().items()):
        matching = (name for name, tools in TOOLS.items() if tools.matches(source))
        name = next(matching, "")
        if name and isinstance(TOOLS[name], FAMILIES) and template not in SILENT:
            found.append((template, name))
    return found


def rendered(source: str) -> str:
    calls = [
        {"id": f"{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for n, (name, arguments) in enumerate(CALLS)
    ]
    messages: list[dict[str, object]] = [
        {"role": "user", "content": "Hi."},
        {"role": "assistant", "content": "", "tool_calls": calls},
    ]
    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    return template.render(messages, add_generation_prompt=False)


@pytest.mark.skipif(not llama_templates(), reason="needs the source package of llama-cpp-python")
def test_calls_come_back() -> None:
    # MLC-22, TAB-50, TAB-54; complaint 5
    assert len(of_families()) >= 15
    for template, name in of_families():
        text = rendered(llama_templates()[template])
        # LFM writes strings without escapes, where a backslash is one of Python's.
        unescaped = {"code": "def f(a):\n\treturn a < 1 and \"x\" > 'y'  # \n & <b>\n"}
        for way in ([text], text):
            found = calls_of(run(partial(TOOLS[name].parser, SCHEMAS), way))
            calls = [(called, json.loads(str(arguments))) for _, called, arguments in found]
            expected = [(called, dict(arguments)) for called, arguments in CALLS]
            if name == "lfm2":
                expected[0][1].update(unescaped)
            assert calls == expected, template
