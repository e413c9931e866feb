"""Schemas that calls in other forms than JSON cannot keep to are refused, whatever they are."""

import pytest

from enginebay import SchemaError
from enginebay_parsers import TOOLS

FORMATS = ("qwen3-coder", "deepseek-v3.2", "minimax-m3", "lfm2", "gemma")
VALUES = [
    ({"type": "string", "not": {"const": "x"}}, "/properties/a/not"),
    ({"type": "string", "pattern": "(?=a)b"}, "/properties/a/pattern"),
    ({"type": "string", "pattern": "\\"}, "/properties/a/pattern"),
    ({"type": "string", "format": "colour"}, "/properties/a/format"),
    ({"type": "string", "format": ["date"]}, "/properties/a/format"),
    ({"$ref": "#/nope"}, "/nope"),
    ({"type": [[1]]}, "/properties/a"),
    ({"enum": []}, "/properties/a"),
]


@pytest.mark.parametrize(("value", "path"), VALUES)
@pytest.mark.parametrize("name", ["qwen3-coder", "deepseek-v3.2", "minimax-m3", "gemma"])
def test_the_place_is_named(name: str, value: dict[str, object], path: str) -> None:
    schema = {"type": "object", "properties": {"a": value}}
    with pytest.raises(SchemaError) as caught:
        TOOLS[name].grammar({"f": schema}, parallel=True)
    assert caught.value.path == path


@pytest.mark.parametrize("name", FORMATS)
def test_a_name_that_cannot_be_written_is_refused(name: str) -> None:
    with pytest.raises(SchemaError):
        TOOLS[name].grammar({'f"<': {"type": "object"}}, parallel=True)
