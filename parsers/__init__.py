"""The built-in reasoning and tool-call formats: a few families, described in a line each.

To add a format of a known family, add a line to its table: `reasoning_table`, `json_table` or
`tags_table`. To add a family, write a module with a frozen description that makes a parser and a
grammar; `splitter`, `tag_patterns`, `parts` and the scanners are there to build it from.
"""

from enginebay import ReasoningFormat, Register, ToolFormat, hookimpl
from parsers.reasoning_table import REASONING as REASONING
from parsers.tools_table import TOOLS as TOOLS


@hookimpl
def register_parsers(reasoning: Register[ReasoningFormat], tools: Register[ToolFormat]) -> None:
    """Registers every format of the tables above."""
    for name, reasoning_format in REASONING.items():
        reasoning(name, reasoning_format)
    for name, tool_format in TOOLS.items():
        tools(name, tool_format)
