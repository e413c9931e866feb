"""What a step takes, by what is in it: measured, and guessed in between."""

from dataclasses import dataclass
from math import log2

_WEIGHT = 0.25  # of the latest measurement in an average
_LONGEST = 3.0  # times the average: a pause of the machine is no time of a step
_OLD = 1024  # steps after which a measurement is worth making again
_FIRST = 4  # tokens that are drafted before anything is known of the time that takes


@dataclass(slots=True)
class Average:
    """Of what was measured, the latest most: tokens drafted, and seconds; `at` which step last."""

    drafted: float
    seconds: float
    at: int = 0

    def add(self, drafted: int, seconds: float) -> None:
        seconds = min(seconds, _LONGEST * self.seconds)
        self.drafted += _WEIGHT * (drafted - self.drafted)
        self.seconds += _WEIGHT * (seconds - self.seconds)


class StepTimes:
    """Seconds of a step, by how many choices it decodes and how many tokens are drafted for them.

    About as many choices take about as long. Between what was measured times are interpolated, and
    beyond it, up to twice as many tokens, as steep as at the end; before any step with drafts was
    measured, a few are free. `lengths`: of how many different lengths the chunks are, where that
    matters.
    """

    def __init__(self) -> None:
        self._steps = 0
        self._plain: dict[int, Average] = {}
        self._drafting: dict[tuple[int, int], dict[int, Average]] = {}

    def add(self, choices: int, drafted: int, seconds: float, lengths: int = 1) -> None:
        """One more measurement."""
        self._steps += 1
        about = _about(choices)
        averages, size = self._plain, about
        if drafted:
            averages = self._drafting.setdefault((about, lengths), {})
            size = _about(drafted)
        if size in averages:
            averages[size].add(drafted, seconds)
        else:
            averages[size] = Average(drafted, seconds)
        averages[size].at = self._steps

    def plain(self, choices: int) -> float | None:
        """Without drafts; None if that was not measured yet."""
        average = self._plain.get(_about(choices))
        return average.seconds if average else None

    def of(
        self, choices: int, most: int, lengths: int = 1, *, hopeful: bool = False
    ) -> list[float]:
        """With 0 to `most` tokens drafted, or fewer than `most` where nothing is known of so many.

        A step without drafts must have been measured. `hopeful`: a step takes no longer than one
        with fewer drafts, if there was any, where it was not measured itself for long.
        """
        about = _about(choices)
        drafting = self._drafting.get((about, lengths), {})
        known = [self._plain[about], *(drafting[size] for size in sorted(drafting))]
        if hopeful:
            known[1:] = [each for each in known[1:] if self._steps - each.at < _OLD]
        most = min(most, max(_FIRST, choices, int(2 * known[-1].drafted)))
        if len(known) == 1:
            return [known[0].seconds] * (most + 1)
        times: list[float] = []
        at = 0
        for drafted in range(most + 1):
            while at < len(known) - 2 and known[at + 1].drafted < drafted:
                at += 1
            low, high = known[at], known[at + 1]
            if hopeful and high.drafted < drafted:
                times.append(high.seconds)
            elif hopeful and at and drafted < high.drafted - 0.5:
                times.append(low.seconds)
            else:
                slope = max(0.0, (high.seconds - low.seconds) / (high.drafted - low.drafted))
                times.append(low.seconds + slope * (drafted - low.drafted))
        return times


def _about(choices: int) -> int:
    """The same number for counts that differ by less than a fifth."""
    return int(4 * log2(choices))
