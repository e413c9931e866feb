"""The built-in reasoning and tool-call formats: a few families, described in a few lines each.

To add a format of a known family, add an entry to its table: `formats_json`, `formats_named`,
`formats_xml`, `formats_python` or `formats_reasoning`. Its `example` is what a model writes in it,
raw, from which the tests and `enginebay plugins formats` take it.

Each family has a folder: `json`, `xml`, `python` and `channels` for tool calls, `reasoning` and
`channels` for reasoning. To add one, write a frozen description that makes a parser and a grammar.
`stream` has what reads text that arrives in pieces, `arguments` what a function's schema says of
its arguments. Families do not import each other.
"""

from enginebay import ReasoningFormat, Register, ToolFormat, hookimpl
from enginebay_parsers.formats_json import JSON_CALLS
from enginebay_parsers.formats_named import NAMED_CALLS
from enginebay_parsers.formats_python import PYTHON_CALLS
from enginebay_parsers.formats_reasoning import REASONING as REASONING
from enginebay_parsers.formats_xml import XML_CALLS

# `auto` takes the first that matches a chat template.
TOOLS: dict[str, ToolFormat] = {**XML_CALLS, **PYTHON_CALLS, **JSON_CALLS, **NAMED_CALLS}


@hookimpl
def register_parsers(reasoning: Register[ReasoningFormat], tools: Register[ToolFormat]) -> None:
    """Registers every format of the tables."""
    for name, reasoning_format in REASONING.items():
        reasoning(name, reasoning_format)
    for name, tool_format in TOOLS.items():
        tools(name, tool_format)
