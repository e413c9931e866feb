"""Values of arguments, their schemas, and how templates write them."""

import json
from collections.abc import Mapping

from hypothesis import strategies as st


def as_text(value: object) -> str:
    """A string as it is, anything else as JSON: what most templates do."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def schema_of(value: object) -> dict[str, object]:
    """A schema that says what `value` is."""
    match value:
        case None:
            return {"type": "null"}
        case bool():
            return {"type": "boolean"}
        case int():
            return {"type": "integer"}
        case float():
            return {"type": "number"}
        case str():
            return {"type": "string"}
        case list():
            return {"type": "array"}
        case _:
            return {"type": "object"}


def schemas_of(*calls: tuple[str, Mapping[str, object]]) -> dict[str, dict[str, object]]:
    """The schemas of functions that are called with these arguments."""
    return {
        name: {
            "type": "object",
            "properties": {key: schema_of(value) for key, value in arguments.items()},
        }
        for name, arguments in calls
    }


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12)
    | st.sampled_from(["02134", "false", "null", "1e5", '"', "\\", "'", "\n", " x ", "日本🙂", ""])
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=8,
)
names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.\-é]{0,11}", fullmatch=True)
keys = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.\-é ]{0,7}[a-z]", fullmatch=True)
