"""Bodies of requests from Python values, with the errors that HTTP has for them."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from core.config.problems import key_text
from core.contract.errors import InvalidRequestError

Body = TypeVar("Body", bound=BaseModel)


def read_body(kind: type[Body], value: object) -> Body:
    """The body that `value`, as `json.loads` makes it, is. `InvalidRequestError` if it is none."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise first_problem(error.errors(), value) from error


def first_problem(problems: Sequence[Mapping[str, Any]], body: Any) -> InvalidRequestError:
    """The first of the problems that pydantic found in a body, with its place there."""
    first = problems[0]
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", first["msg"])
        return InvalidRequestError(f"the body is not valid JSON: {reason}")
    param = _place(first, body)
    if not param:
        return InvalidRequestError(
            "the body must be a JSON object, sent with the header Content-Type: application/json"
        )
    message = first["msg"].removeprefix("Value error, ")
    return InvalidRequestError(f"{param}: {message}", param=param)


def _place(problem: Mapping[str, Any], body: Any) -> str:
    """Where in the body a problem is, as `messages[0].role`.

    pydantic's `loc` also names the branches of unions, which are not there.
    """
    place: list[str | int] = []
    for part in problem["loc"]:
        if _has(body, part):
            place.append(part)
            body = body[part]
    if problem["loc"] and problem["type"] == "missing":
        place.append(problem["loc"][-1])
    return key_text(tuple(place))


def _has(body: Any, part: str | int) -> bool:
    if isinstance(body, dict):
        return part in body
    return isinstance(body, list) and isinstance(part, int) and part < len(body)
