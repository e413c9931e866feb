"""What the grammars of calls between tags allow, their parser reads as right calls."""

from collections.abc import Sequence

import pytest

from enginebay import ToolFormat
from enginebay_parsers import TOOLS
from enginebay_parsers.channels.muse import MuseCalls
from enginebay_parsers.stream.tag_patterns import literal_start
from enginebay_parsers.xml.xml_calls import XmlCalls
from tests.parsers.grammars.law import assert_forced, assert_free
from tests.parsers.grammars.xml_tags import TAGS

FORMATS = {
    name: tools.calls if isinstance(tools, MuseCalls) else tools for name, tools in TOOLS.items()
}
NAMES = sorted(name for name, tools in FORMATS.items() if isinstance(tools, XmlCalls))


@pytest.mark.parametrize("name", NAMES)
def test_forced(name: str) -> None:
    assert_forced(TOOLS[name], tags_of(name))


@pytest.mark.parametrize("name", NAMES)
def test_free(name: str) -> None:
    assert_free(TOOLS[name], (*tags_of(name), *beginnings(FORMATS[name])))


def tags_of(name: str) -> Sequence[str]:
    """The tags that are tokens: those of known models, else those around calls and values."""
    tools = FORMATS[name]
    assert isinstance(tools, XmlCalls)
    ends = (parameter.end for parameter in tools.parameters)
    return TAGS.get(name) or tuple(filter(None, (tools.block, tools.block_end, *ends)))


def beginnings(tools: ToolFormat) -> list[str]:
    """How calls begin, and go on behind the tag that opens them: likelier so than as text."""
    assert isinstance(tools, XmlCalls)
    start = literal_start(tools.call)
    calls = [
        tools.call.replace("{name}", name).replace("{index}", "1").replace("{}", "")
        for name in ("now", "weather", "open_set")
    ]
    if not tools.block:
        return [start, *(call.removeprefix(start) for call in calls)]
    return [tools.block, *(tools.spaces[0] + call for call in calls)]
