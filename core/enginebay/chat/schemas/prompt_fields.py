"""Prompts in request bodies: one or several, as text or token ids."""

from collections.abc import Callable
from typing import Any

from enginebay.config.field_types import Scalars
from enginebay.contract.errors import InvalidRequestError

TokenIds = Scalars[int]
Prompts = str | TokenIds | Scalars[str] | Scalars[TokenIds]


def prompts_shape(most: int) -> Callable[[Any], Any]:
    """A validator for `Prompts`, at most this many.

    It has one error for what is wrong; a union would collect one for each item and branch.
    """

    def validate(value: Any) -> Any:
        several = isinstance(value, list) and bool(value) and type(value[0]) is not int
        if several and len(value) > most:
            raise ValueError(f"{len(value)} prompts in one request; the maximum is {most}")
        if isinstance(value, str) or _is_token_ids(value):
            return value
        if several and (
            all(isinstance(item, str) for item in value) or all(map(_is_token_ids, value))
        ):
            return value
        raise ValueError("must be a string, a list of strings, token ids, or a list of token ids")

    return validate


def _is_token_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def listed(prompts: Prompts, param: str) -> list[str] | list[TokenIds]:
    """One or several as a list, which is not empty."""
    if isinstance(prompts, str):
        return [prompts]
    if not prompts:
        raise InvalidRequestError(f"the {param} is empty", param=param)
    if isinstance(prompts[0], int):
        return [prompts]
    return prompts
