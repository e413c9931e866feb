"""What tells the objects of a union apart."""

from typing import Any


def type_of(value: Any) -> Any:
    """The `type` that an object says it has, or a model of it; None if it says none."""
    return value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
