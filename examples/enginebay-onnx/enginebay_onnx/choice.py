"""One choice of a request, token by token: what it says, and when it ends."""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from enginebay import (
    BudgetWatch,
    Delta,
    Detokenizer,
    GenerationRequest,
    GrammarCompiler,
    InvalidRequestError,
    StopStrings,
    TokenLogprob,
    allowed_tokens,
)
from enginebay_onnx.folder import Folder
from enginebay_onnx.sampling import Logits, Sampler, token_logprob

HONOURED = frozenset(
    {
        "max_tokens",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "include_stop_str_in_output",
        "skip_special_tokens",
        "constraint",
        "reasoning_budget",
    }
)


class Choice:
    """Everything between the logits of a step and the delta that comes of them.

    `token_ids` are those of the prompt and the completion, `opening` is what the next delta says
    beside its token.
    """

    def __init__(
        self,
        request: GenerationRequest,
        index: int,
        folder: Folder,
        compiler: GrammarCompiler | None,
        room: int,
    ) -> None:
        """`room`: tokens that fit behind the prompt. `InvalidRequestError` for a bad grammar."""
        params = request.sampling
        stop_token_ids = frozenset(params.stop_token_ids)
        self.request_id = request.request_id
        self.token_ids = list(request.prompt_token_ids)
        self.opening = Delta(index=index)
        self.matcher = None
        if compiler and params.constraint is not None:
            self.matcher = compiler.matcher(params.constraint, stop_token_ids)
        self._params = params
        self._prompt_length = len(self.token_ids)
        self._longest = self._prompt_length + min(params.max_tokens or room, room)
        self._folder = folder
        self._compiler = compiler
        self._eos = frozenset() if params.ignore_eos else folder.end_token_ids
        ends = self._eos | stop_token_ids
        self._sampler = Sampler(params, index, request.prompt_token_ids, ends)
        self._silent = folder.end_token_ids
        if params.skip_special_tokens:
            self._silent |= folder.special_token_ids
        self._detokenizer = Detokenizer(folder.decode)
        self._stops = StopStrings(params.stop, keep=params.include_stop_str_in_output)
        budget = params.reasoning_budget
        self._watch = BudgetWatch(budget) if budget else None
        self._texts: list[str] = []  # of each token
        self._fed = self._said = 0  # characters of the tokens, and those that are out
        self._held: deque[tuple[int, TokenLogprob]] = deque()  # with where the token's text begins

    def next(self, logits: Logits, mask: NDArray[np.int32] | None, grammar_s: float) -> Delta:
        """Choose a token by the logits `[vocabulary]`; what the choice gains by it."""
        token_id = self._forced()
        if token_id is None:
            allowed = None if mask is None else allowed_tokens(mask, len(logits))
            token_id = self._sampler.sample(logits, allowed)
        if self.matcher and not self.matcher.accept(token_id):
            message = f"the grammar cannot be followed any further: {self.matcher.error}"
            raise InvalidRequestError(message, param="constraint")
        self.token_ids.append(token_id)
        self._sampler.add(token_id)
        text = ""
        finish_reason: Literal["stop", "length"] | None = None
        stop_reason: str | int | None = None
        if token_id in self._eos:
            finish_reason = "stop"
        elif token_id in self._params.stop_token_ids:
            finish_reason, stop_reason = "stop", token_id
        kept = stop_reason is not None and self._params.include_stop_str_in_output
        if finish_reason is None or kept:
            text = self._feed(token_id, logits)
        if finish_reason is None and self.matcher and self.matcher.finished:
            finish_reason = "stop"
        if finish_reason is None and len(self.token_ids) >= self._longest:
            finish_reason = "length"
        if finish_reason:
            text += self._stops.feed(self._detokenizer.finish()) + self._stops.finish()
        if self._stops.found is not None:
            finish_reason, stop_reason = "stop", self._stops.found
        self._said += len(text)
        if finish_reason and not self._is_satisfied():
            finish_reason = "length"
        opening, self.opening = self.opening, Delta(index=self.opening.index)
        return replace(
            opening,
            text=text,
            token_ids=(token_id,),
            logprobs=self._release(everything=bool(finish_reason) and self._stops.found is None),
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            grammar_s=grammar_s,
        )

    def _forced(self) -> int | None:
        """The token by which a reasoning budget ends thought, unless it has ended already."""
        if not self._watch or (forced := self._watch.forced) is None:
            return None
        if self.matcher and not self.matcher.allows(forced):
            self._watch.let_go()
            return None
        return forced

    def _feed(self, token_id: int, logits: Logits) -> str:
        """The text that is certain now."""
        text = "" if token_id in self._folder.end_token_ids else self._detokenizer.feed(token_id)
        if self._watch:
            self._watch.add(text)
        if token_id in self._silent:
            self._texts.append("")
            return ""
        if (count := self._params.logprobs) is not None:
            entry = token_logprob(logits, token_id, count, self._folder.token_text)
            self._held.append((self._fed, entry))
        self._texts.append(text)
        self._fed += len(text)
        may_stop = len(self._texts) >= self._params.min_tokens
        return self._stops.feed(text) if may_stop else text

    def _release(self, *, everything: bool) -> tuple[TokenLogprob, ...] | None:
        """The logprobs of tokens whose text is out: none for one that a stop string cut off."""
        if self._params.logprobs is None:
            return None

        def released() -> Iterator[TokenLogprob]:
            while self._held and (everything or self._held[0][0] < self._said):
                yield self._held.popleft()[1]

        return tuple(released())

    def _is_satisfied(self) -> bool:
        """Whether the grammar may end behind the text that is out, which may have been cut."""
        if not self.matcher or self._stops.found is None:
            return not self.matcher or self.matcher.satisfied
        assert self._compiler
        assert self._params.constraint
        replay = self._compiler.matcher(self._params.constraint)
        left = self._said
        rest = ""
        for token_id, text in zip(self.token_ids[self._prompt_length :], self._texts, strict=False):
            if len(text) > left:
                rest = text[:left]
                break
            replay.accept(token_id)
            left -= len(text)
        return all(map(replay.accept, self._compiler.tokenize(rest))) and replay.satisfied
