"""Grammars of lists whose entries come in an order, some of them optional."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from enginebay import Grammar, Repeat, choice, optional, sequence


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry that is written whenever it is `required`, and else once or not at all."""

    grammar: Grammar
    required: bool


def listed(
    entries: Sequence[Entry], separator: str, further: Grammar | None, most_further: int | None
) -> Grammar:
    """The entries in order and then `further` ones, with a separator between them."""

    def behind(first: int) -> Iterator[Grammar]:
        for entry in entries[first:]:
            item = sequence(separator, entry.grammar)
            yield item if entry.required else optional(item)
        if further is not None:
            yield Repeat(sequence(separator, further), 0, most_further)

    ways = []
    for number, entry in enumerate(entries):
        ways.append(sequence(entry.grammar, *behind(number + 1)))
        if entry.required:
            return choice(*ways)
    if further is not None:
        most = None if most_further is None else most_further - 1
        ways.append(sequence(further, Repeat(sequence(separator, further), 0, most)))
    return optional(choice(*ways)) if ways else sequence()
