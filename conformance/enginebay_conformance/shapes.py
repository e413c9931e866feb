"""Validates objects against the models of the `openai` SDK.

The SDK takes whatever comes (`model_construct`), so its models are asked to validate strictly.
"""

from openai import BaseModel

from enginebay_conformance.endpoint import Json
from enginebay_conformance.expect import Mismatch, expect


def expect_shape(kind: type[BaseModel], body: object) -> None:
    """Raise `Mismatch` unless the SDK's model accepts `body` without converting anything."""
    try:
        kind.model_validate(body, strict=True)
    except ValueError as error:
        place, problem, *_ = str(error).splitlines()[1:]
        raise Mismatch(f"no {kind.__name__}: {place}: {problem.strip()}") from error


def expect_usage(usage: Json | None) -> Json:
    """Usage with its three counts, which add up."""
    counts = [(usage or {}).get(f"{name}_tokens") for name in ("prompt", "completion", "total")]
    if usage is None or any(type(count) is not int for count in counts):
        raise Mismatch(f"usage is {usage!r}")
    prompt, completion, total = (int(count or 0) for count in counts)
    expect(total == prompt + completion, f"{prompt} + {completion} is not {total}")
    expect(prompt > 0, "no prompt tokens were counted")
    return usage
