"""Objects in bodies whose unknown keys are kept, so that they can be named."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict

from enginebay.config.neutral_values import asks_for_nothing


class OpenObject(BaseModel):
    """An object in a request that may have more keys than are known here."""

    model_config = ConfigDict(extra="allow")

    @property
    def unknown_keys(self) -> list[str]:
        """The keys that have no effect here, and ask for something: what is off does not."""
        extra: dict[str, Any] = self.model_extra or {}
        return [k for k, v in extra.items() if v is not False and not asks_for_nothing(k, v)]


def unknown_paths(place: str, value: Any) -> Iterator[str]:
    """The unknown keys of open objects, by their paths: of `value`, and of all that are in it."""
    if isinstance(value, OpenObject):
        yield from (f"{place}.{key}" for key in value.unknown_keys)
        for name in type(value).model_fields:
            yield from unknown_paths(f"{place}.{name}", getattr(value, name))
    elif isinstance(value, list):
        for position, each in enumerate(value):
            yield from unknown_paths(f"{place}[{position}]", each)
