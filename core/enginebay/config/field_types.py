"""Pydantic fields that clients send under several names, and values that clients send for unset."""

import json
from typing import Annotated, Any, TypeVar

from pydantic import AliasChoices, BaseModel, BeforeValidator, Field, model_validator
from pydantic.fields import FieldInfo

_Item = TypeVar("_Item")


def _unchanged(item: Any) -> Any:
    return item


ModelName = Annotated[str, Field(max_length=1000)]
"""A model's name as clients send it: no model has a longer one."""

Scalars = Annotated[list[_Item], Field(fail_fast=True)]
"""A list of numbers or texts, which is refused at the first wrong one."""

Many = Annotated[list[Annotated[_Item, BeforeValidator(_unchanged)]], Field(fail_fast=True)]
"""A list of objects, which is refused at the first wrong one.

pydantic calls a Python function before each object: there the event loop can take over from a
thread that validates.
"""


class NullIsUnset(BaseModel):
    """A body in which null is the same as no value."""

    @model_validator(mode="before")
    @classmethod
    def _null_means_unset(cls, data: Any) -> Any:
        if isinstance(data, dict):
            return {name: value for name, value in data.items() if value is not None}
        return data


def default_if_null(default: Any) -> BeforeValidator:
    """A validator of an optional field of this default, for which null is the same as no value."""
    return BeforeValidator(lambda value: default if value is None else value)


def aliased(name: str, *aliases: str, description: str | None = None) -> Any:
    """A field that is None unless sent, under any of these names; the first one sent is used."""
    return Field(
        default=None, validation_alias=AliasChoices(name, *aliases), description=description
    )


def field_names(name: str, field: FieldInfo) -> list[str]:
    """All names of a field."""
    alias = field.validation_alias
    return [str(choice) for choice in alias.choices] if isinstance(alias, AliasChoices) else [name]


def zero_if_minus_one(value: Any) -> Any:
    """Treat -1 as 0 (disabled)."""
    return 0 if value == -1 else value


def none_if_minus_one(value: Any) -> Any:
    """Treat -1 as unset."""
    return None if value == -1 else value


def none_if_zero(value: Any) -> Any:
    """Treat 0 as unset."""
    return None if value == 0 else value


def one_if_zero(value: Any) -> Any:
    """Treat 0 as 1 (disabled)."""
    return 1 if value == 0 else value


def minus_one_if_negative(value: Any) -> Any:
    """Treat any negative number as -1 (disabled)."""
    return -1 if isinstance(value, int | float) and value < 0 else value


def two_if_true(value: Any) -> Any:
    """Treat true as version 2."""
    return 2 if value is True else value


def one_as_list(value: Any) -> Any:
    """Wrap a lone string in a list."""
    return [value] if isinstance(value, str) else value


def texts_and_tokens(value: Any) -> Any:
    """Wrap a lone string in a list; check that a list has strings, and token ids beside them."""
    value = one_as_list(value)
    if value is not None and not (
        isinstance(value, list)
        and all(isinstance(item, str) or (type(item) is int and item >= 0) for item in value)
    ):
        raise ValueError("must be a string, or a list of strings and token ids")
    return value


def json_text(value: Any) -> Any:
    """Convert an object to its JSON text."""
    try:
        return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error


def json_list(value: Any) -> Any:
    """Parse JSON, as SillyTavern sends lists of strings; an empty list means unset."""
    if isinstance(value, str):
        text = value.strip()
        try:
            value = json.loads(text if text.startswith("[") else f"[{text}]")
        except (ValueError, RecursionError) as error:
            raise ValueError("must be a list of strings, or its JSON text") from error
    return value or None


def token_list(value: Any) -> Any:
    """Token ids as a list, or as SillyTavern sends them: `"1, 2"`; an empty list means unset.

    Raises a single error, however many are wrong.
    """
    if isinstance(value, str):
        words = value.strip().removeprefix("[").removesuffix("]").split(",")
        words = [word.strip() for word in words if word.strip()]
        if not all(word.isascii() and word.isdecimal() and len(word) <= 10 for word in words):
            raise ValueError("must be token ids, separated by commas")
        value = [int(word) for word in words]
    if value is not None and not (
        isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
    ):
        raise ValueError("must be a list of token ids")
    return value or None


def token_bias(value: Any) -> Any:
    """Check biases, with a single error however many are wrong."""
    if not isinstance(value, dict):
        raise ValueError("must map token ids to numbers from -100 to 100")
    for token_id, bias in value.items():
        if not str(token_id).isdecimal():
            raise ValueError(f"{token_id!r} is not a token id")
        if not isinstance(bias, int | float) or not -100 <= bias <= 100:
            raise ValueError(f"the bias of token {token_id} is not a number from -100 to 100")
    return value
