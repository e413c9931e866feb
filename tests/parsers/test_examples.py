"""The raw example of each format is read back as what it says."""

import json

import pytest

from enginebay import Schemas
from enginebay_parsers import REASONING, TOOLS
from tests.parsers.cutting import calls_of, content_of, same_however_cut, text_of

WEATHER: Schemas = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    }
}


@pytest.mark.parametrize("name", TOOLS)
def test_two_calls(name: str) -> None:
    # TAB-50, TAB-51, TAB-55
    parts = same_however_cut(lambda: TOOLS[name].parser(WEATHER), TOOLS[name].example)
    found = [(call[1], json.loads(str(call[2]))) for call in calls_of(parts)]
    assert found == [("get_weather", {"city": "Oslo"}), ("get_weather", {"city": "Rome"})]
    assert not content_of(parts).strip()


@pytest.mark.parametrize("name", REASONING)
def test_reasoning_and_answer(name: str) -> None:
    # TAB-60, TAB-63
    form = REASONING[name]
    parts = same_however_cut(lambda: form.parser(inside=False), form.example)
    assert text_of(parts, "reasoning").strip() == "Two and two is four."
    assert content_of(parts).strip() == "It is 4."
