"""The built-in tool-call formats: a few families, described in a line each."""

from enginebay import ToolFormat
from parsers import harmony
from parsers.json_table import JSON_CALLS
from parsers.tags_table import TAGGED_ARGUMENTS

# `auto` takes the first that matches a chat template.
TOOLS: dict[str, ToolFormat] = {"harmony": harmony.HarmonyCalls(), **TAGGED_ARGUMENTS, **JSON_CALLS}
