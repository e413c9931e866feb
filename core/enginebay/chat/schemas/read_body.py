"""Bodies of requests from Python values, with the errors that HTTP has for them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    GetCoreSchemaHandler,
    TypeAdapter,
    ValidationError,
    ValidatorFunctionWrapHandler,
)
from pydantic_core import core_schema

from enginebay.chat.schemas.half_characters import whole
from enginebay.config.problems import KeyPath, key_text
from enginebay.contract.errors import InvalidRequestError

Body = TypeVar("Body", bound=BaseModel)
_Valid = TypeVar("_Valid")

_TYPES = {
    "string_type": "a string",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "an integer"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    "list_type": "a list",
    "dict_type": "an object",
    **dict.fromkeys(("model_type", "model_attributes_type"), "an object"),
    "none_required": "null",
}
"""The types of JSON that pydantic's problems ask for."""


@dataclass(frozen=True, slots=True)
class Validated:
    """A validated body, which `Sent` accepts as it is."""

    body: Any


class _AcceptValidated:
    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        def validate(value: Any, whole: ValidatorFunctionWrapHandler) -> Any:
            return value.body if isinstance(value, Validated) else whole(value)

        return core_schema.no_info_wrap_validator_function(validate, handler(source))


Sent = Annotated[Body, _AcceptValidated()]
"""A route's body, which may have been validated before FastAPI validates it."""


def validator_of(kind: Any) -> Callable[[Any], Validated]:
    """Return a function that validates a body of this type, and raises `InvalidRequestError`."""
    validate = TypeAdapter[Any](kind).validate_python
    return lambda value: Validated(_validated(validate, value))


def read_body(kind: type[Body], value: object) -> Body:
    """The body that `value`, as `json.loads` makes it, is. `InvalidRequestError` if it is none.

    It has no half characters.
    """
    return _validated(kind.model_validate, whole(value, shared=True)[0])


def _validated(validate: Callable[[Any], _Valid], value: object) -> _Valid:
    try:
        return validate(value)
    except ValidationError as error:
        raise first_problem(error.errors(include_url=False), value) from error


def first_problem(problems: Sequence[Mapping[str, Any]], body: Any) -> InvalidRequestError:
    """The first of the problems that pydantic found in a body, with its place there.

    Of a value that may be of several types, pydantic lists the problems with each: the one deepest
    in the value is that of the type that was meant.
    """
    places = [_place(problem, body) for problem in problems]
    inside = [at for at, place in enumerate(places) if place[: len(places[0])] == places[0]]
    meant = max(inside, key=lambda at: len(places[at]))
    first, param = problems[meant], key_text(places[meant])
    same = [problems[at] for at in inside if places[at] == places[meant]]
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", first["msg"])
        return InvalidRequestError(f"the body is not valid JSON: {reason}")
    if not param:
        return InvalidRequestError(
            "the body must be a JSON object, sent with the header Content-Type: application/json"
        )
    return InvalidRequestError(f"{param}: {_message(same)}", param=param)


def _message(problems: Sequence[Mapping[str, Any]]) -> str:
    """What is wrong with a value: what the first problem says, or all the types it might have."""
    wanted = dict.fromkeys(_TYPES.get(each["type"], "") for each in problems)
    if all(wanted):
        return f"Input should be {' or '.join(wanted)}"
    message: str = problems[0]["msg"]
    return message.removeprefix("Value error, ")


def _place(problem: Mapping[str, Any], body: Any) -> KeyPath:
    """Where in the body a problem is, as `("messages", 0, "role")`.

    pydantic's `loc` also names the branches of unions, which are not there.
    """
    place: list[str | int] = []
    missing = problem["type"] == "missing"
    for part in problem["loc"][:-1] if missing else problem["loc"]:
        if _has(body, part):
            place.append(part)
            body = body[part]
    if problem["loc"] and missing:
        place.append(problem["loc"][-1])
    return tuple(place)


def _has(body: Any, part: str | int) -> bool:
    if isinstance(body, dict):
        return part in body
    return isinstance(body, list) and isinstance(part, int) and part < len(body)
