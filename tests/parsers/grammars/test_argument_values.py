"""Values of every kind, in the formats that write them in other forms than JSON."""

import pytest

from enginebay import Schemas
from enginebay_parsers import TOOLS
from tests.parsers.grammars.law import assert_forced

FORMATS = {
    "qwen3-coder": ("<tool_call>", "</tool_call>", "\n</parameter>", "\nnull\n</parameter>"),
    "deepseek-v3.2": ("｜DSML｜", "</｜DSML｜parameter>"),
    "glm": ("<tool_call>", "</tool_call>", "<arg_value>", "</arg_value>"),
    "kimi-k3": (
        *("<|open|>", "<|close|>", "<|sep|>", "<|close|>argument<|sep|>"),
        'string"<|sep|><|close|>argument<|sep|>',
    ),
    "minicpm": ("<function", "</function>", "]]></param>", "</param>"),
    "minimax-m3": ("]<]minimax[>[", "]<]minimax[>[</v>"),
    "lfm2": ("<|tool_call_start|>", "<|tool_call_end|>"),
    "gemma": ("<|tool_call>", "<tool_call|>", '<|"|>'),
}
STRING = {"type": "string"}
SHORT = {"type": "string", "maxLength": 3}
VALUES: dict[str, object] = {
    "pattern": {"type": "string", "pattern": "^[a-c]{2}-\\d+$", "maxLength": 9},
    "found": {"type": "string", "pattern": "b|^a", "minLength": 2, "maxLength": 9},
    "date": {"type": "string", "format": "date"},
    "moment": {"type": "string", "format": "date-time"},
    "id": {"type": "string", "format": "uuid"},
    "choice": {"enum": ["a b", "", "null", "1", "</parameter>", 'it\'s\n"q" \\']},
    "const": {"const": "x\ty"},
    "nullable": {"type": ["string", "null"]},
    "short or number": {"anyOf": [{"type": "integer", "maximum": 99, "minimum": -9}, SHORT]},
    "auto": {"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 0, "maximum": 10}]},
    "words": {"enum": ["true", True, None, "none", 3, "3"]},
    "text or list": {"anyOf": [SHORT, {"type": "array", "items": SHORT, "maxItems": 2}]},
    "text or object": {"anyOf": [{"type": "object", "additionalProperties": False}, SHORT]},
    "exclusive": {"oneOf": [{"type": "boolean"}, {"type": "string", "enum": ["maybe"]}]},
    "both": {"allOf": [SHORT, {"minLength": 1}]},
    "list": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    "lists": {"type": "array", "items": {"type": "array", "items": SHORT, "maxItems": 2}},
    "members": {
        "type": "object",
        "properties": {"true": {"type": "boolean"}, "n-1": {"type": "null"}, "s": SHORT},
        "required": ["s"],
        "additionalProperties": False,
    },
    "number": {"type": "number", "minimum": 0, "maximum": 1},
    "referred": {"$ref": "#/$defs/a~1b"},
    "anything": {},
    "tree": {"$ref": "#/$defs/tree"},
}
DEFINITIONS = {
    "a/b": {"type": ["string", "boolean"], "maxLength": 2},
    "tree": {
        "type": "object",
        "properties": {
            "leaf": {"type": "boolean"},
            "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2},
        },
        "required": ["leaf"],
        "additionalProperties": False,
    },
}


def function(**members: object) -> Schemas:
    """A function with these arguments, all of them required."""
    schema = {
        "type": "object",
        "properties": members,
        "required": list(members),
        "additionalProperties": False,
        "$defs": DEFINITIONS,
    }
    return {"f": schema}


# TAB-58
@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("name", FORMATS)
def test_a_value_is_read_back_and_valid(name: str, kind: str) -> None:
    assert_forced(TOOLS[name], FORMATS[name], function(v=VALUES[kind]), range(16))
