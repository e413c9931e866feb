"""When drafts pay: by what a step takes with them, and how many of them were right lately."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, log2
from typing import Any

from core.engine.batching.choice import ChoiceState

_WORTH = 1.1  # times as many tokens a second as without, so that errors of measuring cost nothing
_FADES = 0.95  # of what was seen of drafts, with each token that is seen after it
_FADES_OVERALL = 0.99  # of that of all choices
_LEAST = 0.05  # likelihood of a token that is worth drafting, whatever the time
_FORGOTTEN = 0.99  # of it, with each step without a draft
_PRIOR = 2.0  # tokens that the drafts of all others count for, those of one
_WEIGHT = 0.25  # of the latest measurement in an average
_LONGEST = 3.0  # times the average: a pause of the machine is no time of a step
_FIRST = 4  # tokens that are drafted before anything is known of the time that takes
_MEASURE_AGAIN = 64  # steps with drafts after which one without is measured
_TRY_AGAIN = (64, 2048)  # steps without drafts until one is tried nevertheless: at first, at most


@dataclass(slots=True)
class _Average:
    """What was measured, the latest most: tokens drafted, and seconds."""

    drafted: float
    seconds: float

    def add(self, drafted: int, seconds: float) -> None:
        seconds = min(seconds, _LONGEST * self.seconds)
        self.drafted += _WEIGHT * (drafted - self.drafted)
        self.seconds += _WEIGHT * (seconds - self.seconds)


class StepTimes:
    """Seconds of a step, by how many choices it decodes and how many tokens are drafted for them.

    About as many choices take about as long. Between what was measured times are interpolated, and
    beyond it, up to twice as many tokens, as steep as at the end; before any step with drafts was
    measured, a few are free.
    """

    def __init__(self) -> None:
        self._averages: dict[int, dict[int, _Average]] = {}

    def add(self, choices: int, drafted: int, seconds: float) -> None:
        """One more measurement."""
        averages = self._averages.setdefault(_about(choices), {})
        average = averages.get(drafted.bit_length())
        if average is None:
            averages[drafted.bit_length()] = _Average(drafted, seconds)
        else:
            average.add(drafted, seconds)

    def of(self, choices: int, most: int) -> list[float] | None:
        """With 0 to `most` tokens drafted, or fewer than `most` where nothing is known of so many.

        None if a step without was not measured yet.
        """
        averages = self._averages.get(_about(choices), {})
        if 0 not in averages:
            return None
        known = [averages[size] for size in sorted(averages)]
        most = min(most, max(_FIRST, int(2 * known[-1].drafted)))
        if len(known) == 1:
            return [known[0].seconds] * (most + 1)
        times: list[float] = []
        at = 0
        for drafted in range(most + 1):
            while at < len(known) - 2 and known[at + 1].drafted < drafted:
                at += 1
            low, high = known[at], known[at + 1]
            slope = max(0.0, (high.seconds - low.seconds) / (high.drafted - low.drafted))
            times.append(low.seconds + slope * (drafted - low.drafted))
        return times


def _about(choices: int) -> int:
    """The same number for counts of choices that differ by less than a fifth."""
    return int(4 * log2(choices))


@dataclass(slots=True)
class Acceptance:
    """How likely a draft token is right if those before it were: seen, the latest most."""

    right: float = 0.0
    wrong: float = 0.0
    fades: float = _FADES

    def see(self, right: int, wrong: int) -> None:
        """So many tokens of a draft were right, and then perhaps one was wrong."""
        fades = self.fades ** (right + wrong)
        self.right = fades * self.right + right
        self.wrong = fades * self.wrong + wrong

    def forget(self) -> None:
        """Count for less what was seen."""
        self.right *= _FORGOTTEN
        self.wrong *= _FORGOTTEN

    def rate(self, prior: float) -> float:
        """From 0 to 1; `prior` where nothing was seen."""
        return (self.right + _PRIOR * prior) / (self.right + self.wrong + _PRIOR)


@dataclass(slots=True)
class _Guess:
    """Draft tokens, run or only thought of, and where in a choice they would stand."""

    start: int
    token_ids: Sequence[int]


@dataclass(slots=True)
class _Watched:
    acceptance: Acceptance = field(default_factory=Acceptance)
    guess: _Guess | None = None


@dataclass(frozen=True, slots=True)
class _Step:
    choices: frozenset[ChoiceState[Any]]
    drafted: int
    began: float


class Speculation:
    """Decides how many tokens are drafted for each choice of a step.

    So many that the step yields the most tokens a second, by the times of steps and the share of
    drafts that were right, of each choice; none, if that is no more than without drafts. `clock`
    gives seconds. Once in a while a step is run without drafts, or with some, to measure again.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._times = StepTimes()
        self._overall = Acceptance(1.0, 1.0, _FADES_OVERALL)
        self._watched: dict[ChoiceState[Any], _Watched] = {}
        self._step: _Step | None = None
        self._round_seconds: _Average | None = None
        self._since_plain = 0
        self._since_drafts = 0
        self._patience = _TRY_AGAIN[0]

    def ended(self, running: Iterable[ChoiceState[Any]]) -> None:
        """The last step has ended, with these choices still running."""
        watched = {choice: self._watched.get(choice) or _Watched() for choice in running}
        self._watched = watched
        step, self._step = self._step, None
        if step and not step.choices.isdisjoint(watched):  # else nothing ran for a while
            self._times.add(len(step.choices), step.drafted, self._clock() - step.began)
        for choice, each in watched.items():
            guess, each.guess = each.guess, None
            if guess is None:
                each.acceptance.forget()
                continue
            came = choice.token_ids[guess.start :]
            right = next(
                (i for i, (a, b) in enumerate(zip(guess.token_ids, came, strict=False)) if a != b),
                min(len(guess.token_ids), len(came)),
            )
            wrong = int(right < min(len(guess.token_ids), len(came)))
            each.acceptance.see(right, wrong)
            self._overall.see(right, wrong)

    def begins(
        self,
        decoding: Sequence[ChoiceState[Any]],
        drafts: Mapping[ChoiceState[Any], Sequence[int]],
        *,
        alone: bool,
    ) -> None:
        """A step begins with these drafts. `alone`: without chunks of prompts."""
        if not decoding or not alone:
            return
        drafted = sum(map(len, drafts.values()))
        self._since_plain = self._since_plain + 1 if drafted else 0
        self._step = _Step(frozenset(decoding), drafted, self._clock())

    def watch(self, choice: ChoiceState[Any], token_ids: Sequence[int]) -> None:
        """Compare these with what will come, whether they are run or not."""
        self._watched[choice].guess = _Guess(len(choice.token_ids), token_ids)

    def drafted(self, rounds: int, seconds: float) -> None:
        """Record what it took to draft so many tokens one after another, for any of the choices."""
        each = seconds / rounds
        if self._round_seconds is None:
            self._round_seconds = _Average(1, each)
        else:
            self._round_seconds.add(1, each)

    def plan(
        self,
        decoding: int,
        offered: Mapping[ChoiceState[Any], int],
        most: int,
        *,
        free: bool,
    ) -> dict[ChoiceState[Any], int]:
        """How many of the tokens that can be drafted for each choice are worth their time.

        `decoding`: choices of the step. `most`: tokens of all together. `free`: drafting them takes
        no time.
        """
        if not offered or most <= 0:
            return {}
        times = self._times.of(decoding, min(most, sum(offered.values())))
        if times is None or self._since_plain >= _MEASURE_AGAIN:
            return {}
        prior = self._overall.rate(0.5)
        rates = [self._watched[choice].acceptance.rate(prior) for choice in offered]
        gains = sorted(
            (-(rate**place), place, index)
            for index, (rate, length) in enumerate(zip(rates, offered.values(), strict=True))
            for place in range(1, length + 1)
            if place == 1 or rate**place >= _LEAST
        )
        round_seconds = 0.0 if free or not self._round_seconds else self._round_seconds.seconds
        best, count = _WORTH * decoding / times[0] if times[0] else inf, 0
        tokens, rounds = float(decoding), 0
        for drafted, (loss, place, _) in enumerate(gains[: len(times) - 1], start=1):
            tokens -= loss
            rounds = max(rounds, place)
            speed = tokens / (times[drafted] + rounds * round_seconds)
            if speed > best:
                best, count = speed, drafted
        if count:
            self._since_drafts = 0
            self._patience = max(self._patience // 2, _TRY_AGAIN[0])
        else:
            count = self._try_again()
        choices = list(offered)
        planned: dict[ChoiceState[Any], int] = {}
        for _, _, index in gains[:count]:
            planned[choices[index]] = planned.get(choices[index], 0) + 1
        return planned

    def _try_again(self) -> int:
        """How many tokens to draft though it does not seem to pay: as a rule none."""
        self._since_drafts += 1
        if self._since_drafts < self._patience:
            return 0
        self._since_drafts, self._patience = 0, min(2 * self._patience, _TRY_AGAIN[1])
        return 1
