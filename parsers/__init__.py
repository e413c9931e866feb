"""The built-in reasoning and tool-call formats: a few families, described in a line each.

To add a format of a known family, add a line to its table. To add a family, write a module with a
frozen description that makes a parser; `splitter`, `parts` and `json_scanner` are there to build
it from.
"""

from enginebay import ReasoningFormat, Register, ToolFormat, hookimpl
from parsers.json_calls import JsonCalls
from parsers.tag_pair import TagPair

# `auto` takes the first that matches a chat template.
REASONING: dict[str, ReasoningFormat] = {
    "think": TagPair("<think>", "</think>"),
    "mistral": TagPair("[THINK]", "[/THINK]"),
    "cohere": TagPair("<|START_THINKING|>", "<|END_THINKING|>"),
    "seed": TagPair("<seed:think>", "</seed:think>"),
    "hunyuan": TagPair("<think:opensource>", "</think:opensource>"),
    "gemma": TagPair("<|channel>", "<channel|>", header="thought"),
}

TOOLS: dict[str, ToolFormat] = {
    "hermes": JsonCalls("<tool_call>", "</tool_call>"),
}


@hookimpl
def register_parsers(reasoning: Register[ReasoningFormat], tools: Register[ToolFormat]) -> None:
    """Registers every format of the tables above."""
    for name, reasoning_format in REASONING.items():
        reasoning(name, reasoning_format)
    for name, tool_format in TOOLS.items():
        tools(name, tool_format)
