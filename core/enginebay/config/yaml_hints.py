"""What mistakes in YAML mean for people who edit a file, in place of the parser's own words."""

import re
from collections.abc import Sequence

_HINTS: Sequence[tuple[str, str]] = (
    (
        r"escape (sequence|character)",
        r"a \\ in double quotes begins an escape; put Windows paths in single quotes: 'C:\\models'",
    ),
    (r"character '\\t'", "there is a tab; YAML wants spaces"),
    (r"character '(.)' that", r"text cannot begin with \1; put it in quotes"),
    (r"scanning a directive|<document start>", "text cannot begin with %; put it in quotes"),
    (r"alias", "text cannot begin with *; put it in quotes"),
    (r"anchor", "text cannot begin with &; put it in quotes"),
    (r"for the tag '!|tag expected", "text cannot begin with !; put it in quotes"),
    (r"for the tag '\S+:(value|merge)'", "put this text in quotes"),
    (r"for the tag", "tags (!!) are not accepted; delete it"),
    (r"unhashable key", "text cannot begin with {; put it in quotes"),
    (r"chomping or indentation", "text cannot begin with | or >; put it in quotes"),
    (
        r"sequence entries",
        "a list begins on a line of its own; put text that begins with - in quotes",
    ),
    (r"mapping keys", "text cannot begin with ?; put it in quotes"),
    (r"could not find expected ':'", "a key needs a colon and a space after it"),
    (r"end of stream", "a quote is not closed"),
    (
        r"expected ',' or '([]}])'",
        r"a \1 or a comma is missing; put text that begins with [ or { in quotes",
    ),
    (
        r"found '<scalar>'",
        "there is more text after the closing quote; put the other kind of quotes around all of it",
    ),
    (r"but found '([]},])'", r"there is a \1 too many; put text with it in quotes"),
    (
        r"<block end>",
        "this begins in another column than what it belongs to; indent the keys of a mapping, and "
        "the items of a list, alike",
    ),
    (r"single document", "a second document begins here; delete the line with --- or ..."),
)


def hint(message: str, line: str, column: int, above: str) -> str:
    """What to do about an error of the parser at that column of a line; its own words if unknown.

    `above`: the line before.
    """
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return "the line is indented with a tab; YAML wants spaces"
    if "mapping values" in message:
        return _of_colon(line[:column], above)
    for pattern, words in _HINTS:
        if found := re.search(pattern, message):
            return found.expand(words)
    return message


def _of_colon(before: str, above: str) -> str:
    """What to do about a colon where no value can begin."""
    if re.search(r":\s", before):
        return "the text has a colon and a space in it; put it in quotes"
    if re.search(r"^\s*(- )*[\w-]+:\S", above):
        return "the line above has no space after its colon"
    return "this key is indented more than the one above, which has a value already"
