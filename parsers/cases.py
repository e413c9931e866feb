"""What may follow the tag that opens a call."""

from enginebay import Case, Grammar, Text


def opened(tag: Text, rest: Grammar) -> tuple[Case, ...]:
    """The rest of a call, or the backtick behind a tag that somebody writes about."""
    return (Case(tag, rest), Case(tag, Text("`"), goes_on=True))
