"""How much of JSON Schema can be enforced: the table of `docs/reference/json-schema.md`.

python -m tests.grammar.coverage    # writes it, from the official test suite
"""

import json
from collections import Counter

from enginebay.contract.errors import SchemaError
from enginebay.contract.grammar import json_value
from enginebay.grammar.json_schema import check_schema
from tests.grammar.walks import accepts
from tests.schema_suite import WITHOUT, Group, schema_suite
from tests.support import REPOSITORY

PAGE = REPOSITORY / "docs" / "reference" / "json-schema.md"
_BEGIN, _END = "<!-- coverage -->\n", "<!-- end of coverage -->\n"
_HEAD = (
    "| | schemas enforced | of | valid documents allowed | of | invalid documents allowed |\n"
    "| --- | --: | --: | --: | --: | --: |\n"
)


def table() -> str:
    """The rows, a keyword each; of formats, what the suite has where they are asserted."""
    groups = [*schema_suite(), *schema_suite(formats=True)]
    counts: dict[str, Counter[str]] = {}
    for group in groups:
        counts.setdefault(group.keyword, Counter()).update(_counted(group))
    total = sum(counts.values(), Counter())
    rows = [_row(f"`{keyword}`", count) for keyword, count in counts.items()]
    return _HEAD + "".join([*rows, _row("all", total)])


def _counted(group: Group) -> Counter[str]:
    schema = group.schema
    assert isinstance(schema, dict | bool)
    count = Counter({"schemas": 1})
    try:
        check_schema(schema)
    except SchemaError:
        return count
    count["enforced"] += 1
    grammar = json_value(schema)
    for instance in group.instances:
        allowed = accepts(grammar, json.dumps(instance.data, ensure_ascii=False))
        kind = "valid" if instance.valid else "invalid"
        count[kind] += 1
        count[f"{kind} allowed"] += allowed
    return count


def _row(name: str, count: Counter[str]) -> str:
    keys = ("enforced", "schemas", "valid allowed", "valid", "invalid allowed")
    return f"| {name} | {' | '.join(str(count[key]) for key in keys)} |\n"


def page(text: str) -> str:
    """The page with the table of now."""
    before, _, rest = text.partition(_BEGIN)
    _, _, behind = rest.partition(_END)
    return f"{before}{_BEGIN}{table()}{_END}{behind}"


if __name__ == "__main__":
    if not schema_suite():
        raise SystemExit(WITHOUT)
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
