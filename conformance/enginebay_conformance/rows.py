"""The rows of Enginebay's conformance table, kept in `rows.toml`."""

import re
import tomllib
from dataclasses import dataclass
from importlib.resources import files

_FAMILIES = (
    "MLC|TAB|WEB|LF|VLLM|FIX|SCO|PLG|MM|MEDIA|RESP|MSG|OLL|KOB|LLS|MOD|ENG|GPU|OPS|KEY|SCALE|REAL"
    "|SEC|ANS|WIRE|EVE|CLU"
)


@dataclass(frozen=True, slots=True)
class Row:
    """`what` is asked, `where` the code is; `differs` is why the answer is another on purpose,
    `later` what it will come with.
    """

    id: str
    what: str
    where: str
    differs: str | None = None
    later: str | None = None


def load_rows() -> dict[str, Row]:
    """All rows by id, in order."""
    text = files(__package__).joinpath("rows.toml").read_text(encoding="utf-8")
    data = tomllib.loads(text)
    return {
        id: Row(id, what, where, data["differs"].get(id), data["later"].get(id))
        for id, (what, where) in data["rows"].items()
    }


def find_ids(text: str) -> list[str]:
    """The ids of rows that a text names; `TAB-1..3` is three of them."""
    found = []
    for family, first, last in re.findall(rf"\b({_FAMILIES})-(\d+)(?:\.\.(\d+))?", text):
        numbers = range(int(first), int(last or first) + 1)
        found += [f"{family}-{number}" for number in numbers]
    return found
