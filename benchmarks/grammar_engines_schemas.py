"""JSON schemas as small, typical and large as servers are asked for, each with a document."""

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Sample:
    name: str
    schema: dict[str, Any]
    document: Any

    @property
    def text(self) -> str:
        """The document as models write it, with a space after commas and colons."""
        return json.dumps(self.document, ensure_ascii=False)


def _object(properties: dict[str, Any], optional: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }


def _string(description: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", "description": description, **more}


SMALL = Sample(
    "small",
    _object({"answer": {"type": "string"}, "confidence": {"type": "number"}}),
    {"answer": "The capital of France is Paris, on the Seine.", "confidence": 0.98},
)

TOOL = Sample(
    "tool",
    _object(
        {
            "city": _string("The city to search in, such as Berlin"),
            "check_in": _string("The first night, as YYYY-MM-DD", pattern="^\\d{4}-\\d\\d-\\d\\d$"),
            "nights": {"type": "integer", "minimum": 1, "maximum": 30},
            "room": {"enum": ["single", "double", "family", "suite"]},
            "guests": {
                "type": "array",
                "description": "Everybody who will stay",
                "minItems": 1,
                "maxItems": 8,
                "items": _object(
                    {
                        "name": _string("First and last name"),
                        "age": {"type": "integer", "minimum": 0},
                        "needs": {"type": "array", "items": {"type": "string"}},
                    },
                    optional=("age", "needs"),
                ),
            },
            "budget": _object(
                {
                    "amount": {"type": "number", "minimum": 0},
                    "currency": {"enum": ["EUR", "USD", "GBP"]},
                }
            ),
            "notes": _string("Wishes, in the guest's own words", maxLength=200),
            "breakfast": {"type": "boolean"},
        },
        optional=("notes", "breakfast"),
    ),
    {
        "city": "Lisbon",
        "check_in": "2026-05-14",
        "nights": 3,
        "room": "family",
        "guests": [
            {"name": "Ada Lovelace", "age": 36, "needs": ["quiet room", 'a "proper" desk']},
            {"name": "Zoë Müller"},
        ],
        "budget": {"amount": 512.5, "currency": "EUR"},
        "notes": "We arrive late, and would like the sea view if there is one.",
        "breakfast": True,
    },
)


def _large() -> Sample:
    """Ten definitions of ten properties each, some optional, and a tree of them."""
    kinds: list[dict[str, Any]] = [
        {"type": "string"},
        {"type": "integer", "minimum": 0, "maximum": 9999},
        {"type": "number"},
        {"type": "boolean"},
        {"enum": ["draft", "open", "closed", "archived"]},
        {"type": "array", "items": {"type": "string", "maxLength": 40}},
        {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
        {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3,6}$"},
    ]
    values: list[Any] = [
        "a few words of text",
        1234,
        -0.25,
        True,
        "archived",
        ["first", "second thing"],
        None,
        "AB-12345",
    ]
    definitions: dict[str, Any] = {}
    records: dict[str, Any] = {}
    for number in range(10):
        names = [f"field_{number}_{i}" for i in range(10)]
        properties = {name: kinds[(number + i) % len(kinds)] for i, name in enumerate(names)}
        definitions[f"record_{number}"] = _object(properties, optional=tuple(names[7:]))
        records[f"record_{number}"] = {
            name: values[(number + i) % len(values)] for i, name in enumerate(names)
        }
    node = {name: {"$ref": f"#/$defs/{name}"} for name in definitions}
    children = {"type": "array", "items": {"$ref": "#/$defs/node"}}
    definitions["node"] = _object(
        {"label": {"type": "string"}, **node, "children": children}, optional=(*node, "children")
    )
    schema = {"$defs": definitions, "$ref": "#/$defs/node"}
    leaves = [{"label": name, name: record} for name, record in records.items()]
    return Sample("large", schema, {"label": "root", "children": leaves})


LARGE = _large()
SAMPLES = (SMALL, TOOL, LARGE)
PROSE = (
    "Let me look for a room that suits you. There are several hotels near the river, and most of\n"
    "them have family rooms in May; I will ask for three nights, with breakfast & a sea view.\n"
)
"""What a model says before it calls a tool; the text of the benchmark of triggers."""
