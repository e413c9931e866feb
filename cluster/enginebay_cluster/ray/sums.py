"""What several engines tell of themselves, added up."""

from collections.abc import Sequence
from dataclasses import fields

from enginebay import EngineStats, MemoryUse


def sum_of_stats(stats: Sequence[EngineStats | None]) -> EngineStats | None:
    """Of a number that some do not tell, the sum of those who do; None if nobody tells anything."""
    told = [each for each in stats if each is not None]
    if not told:
        return None

    def total(name: str) -> int | None:
        known = [value for each in told if (value := getattr(each, name)) is not None]
        return sum(known) if known else None

    totals = {each.name: total(each.name) for each in fields(EngineStats)}
    return EngineStats(**totals | {"steps": totals["steps"] or 0})  # type: ignore[arg-type]


def sum_of_memory(memory: Sequence[MemoryUse | None]) -> MemoryUse | None:
    """Of those who tell it; None if nobody does."""
    told = [each for each in memory if each is not None]
    return sum(told, MemoryUse()) if told else None
