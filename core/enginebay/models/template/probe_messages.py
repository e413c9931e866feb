"""Probe input for chat templates: a tool, a call of it, an answer's reasoning."""

from collections.abc import Mapping
from typing import Any

Message = Mapping[str, Any]

CALL_NAME = "get_forecast"
CALL_ARGUMENTS: dict[str, Any] = {"city": "Oslo", "days": 3}
CALL_JSON = '{"city": "Oslo", "days": 3}'
CALL_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": CALL_NAME,
        "description": "Weather of the next days.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Where."},
                "days": {"type": "integer", "description": "How many."},
            },
            "required": ["city", "days"],
        },
    },
}
SHORT_ID = "a1B2c3D4e"  # the only form that Mistral's templates take


def reasoning(text: str) -> dict[str, str]:
    """An answer's reasoning under each field name that requests use.

    Templates read one of these or `thinking`, which is set as in transformers.
    """
    return {"reasoning_content": text, "reasoning": text}
