"""Turns the tokens of one choice into deltas: text, stop strings, logprobs, finish."""

import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import ClassVar, Protocol

from enginebay.contract.sampling_params import ReasoningBudget
from enginebay.contract.types import (
    Delta,
    EngineFinishReason,
    GenerationRequest,
    TokenLogprob,
    TopLogprob,
)
from enginebay.engine.banned_strings import BannedStrings
from enginebay.engine.reasoning_budget import BudgetWatch
from enginebay.engine.repetition import REPETITION, RepetitionWatch, watches_repetition
from enginebay.engine.special_tokens import SpecialTokens
from enginebay.engine.stop_strings import StopStrings
from enginebay.grammar.constraint import Constraint


class TokensToText(Protocol):
    """The text of one growing completion, as `enginebay.Detokenizer`."""

    def feed(self, token_id: int) -> str:
        """The characters this token completes."""
        ...

    def finish(self) -> str:
        """The remains of an incomplete character."""
        ...


class Completion:
    """One choice of a request, fed token by token; its last delta has the `finish_reason`.

    It is `length` if the choice was cut off before its `constraint` was satisfied.

    The engine must take `forced` tokens as they are and keep end tokens from coming before
    `min_tokens`; then the sampling params in `keeps` are honoured.

    `max_tokens`: as requested, limited by the context. `eos_token_ids`: every token that ends the
    model's answers. `special_tokens`: the tokens that `skip_special_tokens` leaves out of the text,
    except those of `format_marks`. Stop strings and banned strings find such tokens anyway.
    `takes_back`: the engine heeds `to_take_back` and `uncertain`; then `banned_strings` are
    honoured as well.
    """

    keeps: ClassVar[frozenset[str]] = frozenset(
        {
            "max_tokens",
            "stop",
            "stop_scope",
            "stop_token_ids",
            "ignore_eos",
            "include_stop_str_in_output",
            "skip_special_tokens",
            "format_marks",
            "loop_detect_window",
            "repetition_detection",
            "constraint",
            "reasoning_budget",
        }
    )

    def __init__(
        self,
        request: GenerationRequest,
        index: int,
        *,
        max_tokens: int,
        eos_token_ids: frozenset[int],
        detokenizer: TokensToText,
        special_tokens: SpecialTokens | None = None,
        constraint: Constraint | None = None,
        takes_back: bool = False,
    ) -> None:
        params = request.sampling
        self.constraint = constraint
        self._index = index
        self._max_tokens = max_tokens
        self._min_tokens = params.min_tokens
        self._eos_token_ids = eos_token_ids
        self._ignore_eos = params.ignore_eos
        self._stop_token_ids = frozenset(params.stop_token_ids)
        self._detokenizer = detokenizer
        self._stops = StopStrings.of(params)
        self._keeps_stop = params.include_stop_str_in_output
        banned = params.banned_strings if takes_back else ()
        self._silent = eos_token_ids if params.skip_special_tokens else frozenset()
        self._unseen: Mapping[int, str] = {}  # silent tokens that stop strings and bans look for
        if special_tokens:
            self._silent |= special_tokens.left_out(params)
            if named := (*params.stop, *banned):
                self._unseen = special_tokens.named_in(named, any_case=bool(banned))
        self._held = _HeldLogprobs(self._silent) if params.logprobs is not None else None
        budget = params.reasoning_budget
        self._watch = BudgetWatch(budget) if budget else None
        self._repeats = RepetitionWatch(params) if watches_repetition(params) else None
        self._banned = BannedStrings(banned) if banned else None
        self.to_take_back = 0
        """How many of the last tokens must go: it is of no use then, a new one begins without."""
        self._tokens = 0
        self._texts: list[str] = []  # of each token, for a constraint
        self._kept = 0
        self._heed_constraint()

    @property
    def forced(self) -> int | None:
        """The token forced by the budget or the constraint; None: sample one."""
        if self._watch and self._watch.forced is not None:
            return self._watch.forced
        return self.constraint.forced if self.constraint else None

    @property
    def tokens_left(self) -> int:
        """How many more tokens the completion may have."""
        return self._max_tokens - self._tokens

    def ends_with(self, token_id: int, *, held: int) -> bool:
        """Whether the choice ends after this token, the last of this many pending ones."""
        is_end = token_id in self._eos_token_ids and not self._ignore_eos
        return is_end or token_id in self._stop_token_ids or held >= self.tokens_left

    @property
    def uncertain(self) -> int:
        """How many of the last tokens may have to be taken back later on."""
        return self._banned.uncertain if self._banned else 0

    def append(
        self, token_id: int, logprob: TokenLogprob | None = None, *, stays: bool = False
    ) -> Delta:
        """The delta of this token; a `ServingError` if its constraint forbids it.

        `stays`: it is not taken back, as there is no other. Nor are forced tokens.
        """
        closing = self._watch is not None and self._watch.forced is not None
        if self._banned and self.constraint:
            stays = stays or token_id == self.constraint.forced
        if self.constraint:
            self.constraint.accept(token_id)
        self._tokens += 1
        text = ""
        finish_reason: EngineFinishReason | None = None
        stop_reason: str | int | None = None
        if token_id in self._eos_token_ids and not self._ignore_eos:
            finish_reason = "stop"
        elif token_id in self._stop_token_ids:
            finish_reason, stop_reason = "stop", token_id
            text = self._feed(token_id, logprob, stays) if self._keeps_stop else ""
        else:
            text = self._feed(token_id, logprob, stays)
            if self.constraint and self.constraint.finished:
                finish_reason = "stop"
            elif self._tokens >= self._max_tokens:
                finish_reason = "length"
            elif self._repeats and self._repeats.add(token_id) and self._may_end:
                finish_reason, stop_reason = "stop", REPETITION
        if finish_reason:
            text += self._stops.feed(self._detokenizer.finish()) + self._stops.finish()
        if self._stops.found is not None:
            finish_reason, stop_reason = "stop", self._stops.found
        self._kept += len(text)
        if self._banned and closing:
            self._banned.settle()
            self.to_take_back = 0
        self._heed_constraint()
        if finish_reason and self.constraint and not self._is_satisfied(self.constraint):
            finish_reason = "length"
        return Delta(
            index=self._index,
            text=text,
            token_ids=(token_id,),
            logprobs=self._release(text, finished=finish_reason is not None),
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            grammar_s=self.constraint.take_seconds() if self.constraint else 0.0,
        )

    @property
    def _may_end(self) -> bool:
        """Whether it need not go on: for its constraint, or until it has enough tokens."""
        satisfied = self.constraint is None or self.constraint.satisfied
        return satisfied and self._tokens >= self._min_tokens

    def end_reasoning(
        self, budget: ReasoningBudget, token_ids: Sequence[int], detokenizer: TokensToText
    ) -> bool:
        """Force the end of reasoning from now on, if the choice is reasoning; whether it is.

        For one without a budget so far, `token_ids` are its tokens, and `detokenizer` is a new one
        to read them with.
        """
        watch = self._watch
        if watch is None:
            watch = BudgetWatch(replace(budget, tokens=sys.maxsize))
            for token_id in token_ids:
                watch.add("" if token_id in self._silent else detokenizer.feed(token_id))
        if not watch.close():
            return False
        self._watch = watch
        self._heed_constraint()
        return True

    def _feed(self, token_id: int, logprob: TokenLogprob | None, stays: bool) -> str:
        silent = token_id in self._silent
        text = "" if silent else self._detokenizer.feed(token_id)
        if self.constraint:
            self._texts.append(text)
        if self._watch and self._watch.forced in (None, token_id):
            self._watch.add(text)  # another one was chosen before that was forced
        if self._held and logprob:
            self._held.add(logprob, text)
        unseen = self._unseen.get(token_id, "") if silent else ""
        if self._tokens >= self._min_tokens:
            shown = self._stops.feed(unseen or text, hidden=bool(unseen))
        else:
            shown = self._stops.skip(text)
        if self._banned:
            read = len(text)
            if self._stops.found is not None:  # what a stop string cut off does not count
                read = self._kept + len(shown) - self._banned.read
                unseen = ""
            self.to_take_back = self._banned.add(text[: max(0, read)], unseen, stays=stays)
        return shown

    def _heed_constraint(self) -> None:
        """After the reasoning the constraint takes precedence over the budget's forced tokens."""
        if not self._watch or not self.constraint:
            return
        forced = self._watch.forced
        if forced is not None and not self.constraint.matcher.allows(forced):
            self._watch.let_go()

    def _is_satisfied(self, constraint: Constraint) -> bool:
        """Whether the emitted text, which a stop string may have cut, satisfies the constraint."""
        if self._stops.found is None:
            return constraint.satisfied
        ends = [0, *accumulate(map(len, self._texts))]
        last = max(end for end in ends if end <= self._kept)
        rest = "".join(self._texts)[last : self._kept]
        return constraint.satisfied_after(ends.index(last), rest)

    def _release(self, text: str, *, finished: bool) -> tuple[TokenLogprob, ...] | None:
        if self._held is None:
            return None
        cut_off = self._stops.found is not None
        return tuple(self._held.release(text, everything=finished and not cut_off))


class _HeldLogprobs:
    """Logprob entries held back until their token's text is emitted.

    So a token that a stop string cuts off entirely has no entry, and one cut in the middle has.
    `silent`: tokens that add no bytes to the text.
    """

    def __init__(self, silent: frozenset[int]) -> None:
        self._silent = silent
        self._entries: deque[tuple[int, TokenLogprob]] = deque()  # after how many characters
        self._begun = False
        self._fed = 0
        self._released = 0

    def add(self, entry: TokenLogprob, text: str) -> None:
        """Hold the entry of the next token, which completes these characters."""
        if any(top.token_id in self._silent for top in entry.top):
            entry = replace(entry, top=tuple(map(self._without_bytes, entry.top)))
        if entry.token_id in self._silent:
            self._entries.append((self._fed, replace(entry, text_bytes=b"")))
            return
        if not self._begun:
            self._begun = True
            entry = _as_shown(entry, text)
        self._entries.append((self._fed + 1, entry))
        self._fed += len(text)

    def release(self, text: str, *, everything: bool) -> list[TokenLogprob]:
        """The entries of the tokens that are in the text up to and including this."""
        self._released += len(text)
        released = []
        while self._entries and (everything or self._entries[0][0] <= self._released):
            released.append(self._entries.popleft()[1])
        return released

    def _without_bytes(self, top: TopLogprob) -> TopLogprob:
        return replace(top, text_bytes=b"") if top.token_id in self._silent else top


def _as_shown(entry: TokenLogprob, text: str) -> TokenLogprob:
    """The entry of a text's first token, which tokenizers may write otherwise than inside a text.

    It may lack its leading space, or what the prompt has of it. A part of a character is the same
    everywhere.
    """
    if entry.token == text or "\ufffd" in entry.token:
        return entry
    top = (replace(t, token=text) if t.token_id == entry.token_id else t for t in entry.top)
    return replace(entry, token=text, top=tuple(top))
