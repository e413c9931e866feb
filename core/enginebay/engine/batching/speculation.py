"""When drafts pay: by what a step takes with them, and how many of them were right lately."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from enginebay.engine.batching.choice import ChoiceState
from enginebay.engine.batching.step_times import Average, StepTimes

_WORTH = 1.1  # times as many tokens a second as without, so that errors of measuring cost nothing
_FADES = 0.95  # of what was seen of drafts, with each token that is seen after it
_FADES_OVERALL = 0.99  # of that of all choices
_LEAST = 0.05  # likelihood of a token that is worth drafting, whatever the time
_FORGOTTEN = 0.99  # of it, with each step without a draft
_PRIOR = 2.0  # tokens that the drafts of all others count for, those of one
_MEASURE_AGAIN = 64  # steps with drafts after which one without is measured
_TRY_AGAIN = (16, 2048)  # steps until something else is tried than what pays: at first, at most
_TRIAL_SHARE = 0.005  # of the time until the next trial that one may cost


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
    choices: Mapping[ChoiceState[Any], int]  # with how many tokens each had
    drafted: int
    lengths: int
    began: float


@dataclass(slots=True)
class _Trial:
    """Something else than what pays: what it took before its step, and what would have come.

    `speed`: tokens a second of what pays.
    """

    speed: float
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Offer:
    """A choice that can be drafted for, up to `length` tokens, each right at this `rate`."""

    choice: ChoiceState[Any]
    length: int
    rate: float


_Plan = tuple[dict[ChoiceState[Any], int], float]
"""How many tokens are drafted for each choice, and tokens a second with them."""


@dataclass(frozen=True, slots=True)
class _Terms:
    """Of a step that decodes so many choices: what drafts must be to be worth it.

    `most`: tokens of all together. `least`: tokens a second, to be exceeded. `round_seconds`: of
    drafting one token for any of the choices. `hopeful`: as in `StepTimes.of`.
    """

    decoding: int
    most: int
    least: float
    round_seconds: float
    hopeful: bool = False


class Speculation:
    """Decides how many tokens are drafted for each choice of a step.

    So many that the step yields the most tokens a second, by the times of steps and the share of
    drafts that were right, of each choice; none, if that is no more than without drafts. `clock`
    gives seconds. Once in a while a step is run without drafts, or with others, to measure again:
    the less often, the more of these trials have not paid, and the more they cost.

    `even`: drafts are as long for all choices that have one (`RunnerMemory.even`).
    """

    def __init__(self, clock: Callable[[], float], *, even: bool = False) -> None:
        self._clock = clock
        self._even = even
        self._times = StepTimes()
        self._overall = Acceptance(1.0, 1.0, _FADES_OVERALL)
        self._watched: dict[ChoiceState[Any], _Watched] = {}
        self._step: _Step | None = None
        self._round_seconds: Average | None = None
        self._since_plain = 0
        self._since_trial = 0
        self._patience = _TRY_AGAIN[0]
        self._trial: _Trial | None = None
        self._owed = 0.0  # seconds of steps until the last trial was worth its cost

    def ended(self, running: Iterable[ChoiceState[Any]]) -> None:
        """The last step has ended, with these choices still running."""
        watched = {choice: self._watched.get(choice) or _Watched() for choice in running}
        self._watched = watched
        step, self._step = self._step, None
        if step and not watched.keys().isdisjoint(step.choices):  # else nothing ran for a while
            self._ran(step, self._clock() - step.began)
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
        lengths = len({len(drafts.get(choice, ())) for choice in decoding}) if self._even else 1
        before = {choice: len(choice.token_ids) for choice in decoding}
        self._step = _Step(before, drafted, lengths, self._clock())

    def watch(self, choice: ChoiceState[Any], token_ids: Sequence[int]) -> None:
        """Compare these with what will come, whether they are run or not."""
        self._watched[choice].guess = _Guess(len(choice.token_ids), token_ids)

    def drafted(self, rounds: int, seconds: float, reading: float = 0.0) -> None:
        """Record what it took to draft so many tokens one after another, for any of the choices.

        `reading`: the seconds before, in which their texts were read.
        """
        if self._trial:
            self._trial.seconds += seconds + reading
        if not rounds:
            return
        each = seconds / rounds
        if self._round_seconds is None:
            self._round_seconds = Average(1, each)
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
        plain = self._times.plain(decoding)
        if not offered or most <= 0 or plain is None or self._since_plain >= _MEASURE_AGAIN:
            return {}
        prior = self._overall.rate(0.5)
        offers = [
            _Offer(choice, length, self._watched[choice].acceptance.rate(prior))
            for choice, length in offered.items()
        ]
        way = self._of_one_length if self._even else self._likeliest
        each = 0.0 if free or not self._round_seconds else self._round_seconds.seconds
        speed = decoding / plain if plain else inf
        terms = _Terms(decoding, min(most, sum(offered.values())), _WORTH * speed, each)
        # Whether drafts as long as can be would pay if they took no time; else they never do.
        hope = sum(o.rate / (1 - o.rate) for o in offers) > (_WORTH - 1) * decoding
        planned, best = way(offers, terms) if hope else ({}, terms.least)
        if not self._may_try(hope=hope, free=free):
            return planned
        tried = way(offers, replace(terms, least=best, hopeful=True))[0] if hope else {}
        if not (planned or tried):
            tried = {max(offers, key=lambda offer: offer.rate).choice: 1}
        if tried and tried != planned:
            self._since_trial = 0
            self._trial = _Trial(best if planned else speed)
        return tried or planned

    def _likeliest(self, offers: Sequence[_Offer], terms: _Terms) -> _Plan:
        """The likeliest tokens, as many as give the most tokens a second."""
        times = self._times.of(terms.decoding, terms.most, hopeful=terms.hopeful)
        gains = sorted(
            (-(offer.rate**place), place, index)
            for index, offer in enumerate(offers)
            for place in range(1, offer.length + 1)
            if place == 1 or offer.rate**place >= _LEAST
        )
        best, count = terms.least, 0
        tokens, rounds = float(terms.decoding), 0
        for drafted, (loss, place, _) in enumerate(gains[: len(times) - 1], start=1):
            tokens -= loss
            rounds = max(rounds, place)
            speed = tokens / (times[drafted] + rounds * terms.round_seconds)
            if speed > best:
                best, count = speed, drafted
        planned: dict[ChoiceState[Any], int] = {}
        for _, _, index in gains[:count]:
            planned[offers[index].choice] = planned.get(offers[index].choice, 0) + 1
        return planned, best

    def _of_one_length(self, offers: Sequence[_Offer], terms: _Terms) -> _Plan:
        """As many tokens for all choices, or for those whose drafts are the likeliest."""
        offers = sorted(offers, key=lambda offer: -offer.rate)
        for_all, for_some = (
            self._times.of(terms.decoding, terms.most, lengths, hopeful=terms.hopeful)
            for lengths in (1, 2)
        )
        best, chosen = terms.least, (0, 0)
        for length in range(1, max(offer.length for offer in offers) + 1):
            if length > 1 and offers[0].rate ** length < _LEAST:
                break
            tokens = float(terms.decoding)
            able = [offer for offer in offers if offer.length >= length]
            for count, offer in enumerate(able, start=1):
                tokens += offer.rate * (1 - offer.rate**length) / (1 - offer.rate)
                times = for_all if count == terms.decoding else for_some
                if count * length < len(times):
                    speed = tokens / (times[count * length] + length * terms.round_seconds)
                    if speed > best:
                        best, chosen = speed, (length, count)
        length, count = chosen
        able = [offer for offer in offers if offer.length >= length]
        return {offer.choice: length for offer in able[:count]}, best

    def _ran(self, step: _Step, seconds: float) -> None:
        """Record the time of a step, and what it cost if it was a trial."""
        choices = len(step.choices)
        self._times.add(choices, step.drafted, seconds, step.lengths)
        self._owed = max(0.0, self._owed - seconds)
        trial, self._trial = self._trial, None
        if trial:
            came = sum(len(choice.token_ids) - before for choice, before in step.choices.items())
            cost = trial.seconds + seconds - came / trial.speed
            self._owed += max(0.0, cost) / _TRIAL_SHARE
            patience = 2 * self._patience if cost > 0 else 0
            self._patience = min(max(patience, _TRY_AGAIN[0]), _TRY_AGAIN[1])

    def _may_try(self, *, hope: bool, free: bool) -> bool:
        """Whether to try something else now. Drafts that are free are seen without being run."""
        self._since_trial += 1
        if not hope and free:
            return False
        return self._since_trial >= self._patience and not self._owed
