"""Logprobs on the wire, in the forms of OpenAI's two APIs and of vLLM's `prompt_logprobs`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from core.chat.schemas.chat_answer import ChatLogprobs, TopLogprob
from core.chat.schemas.chat_answer import TokenLogprob as ChatToken
from core.chat.schemas.completion_bodies import CompletionLogprobs
from core.chat.schemas.usage_bodies import PromptLogprob, PromptLogprobs
from core.contract.types import TokenLogprob

LOWEST = -9999.0  # stands for what JSON cannot say: minus infinity, and no number at all


def finite(logprob: float) -> float:
    """`logprob`, or a finite number that JSON can represent."""
    return logprob if LOWEST < logprob < inf else LOWEST


@dataclass(frozen=True, slots=True)
class TextToken:
    """A token of a text, where in it the token begins, and its entry; a prompt's first has none."""

    token_id: int
    text: str
    offset: int
    entry: TokenLogprob | None


@dataclass(frozen=True, slots=True)
class LogprobForm:
    """How tokens are written: as text, or, if `as_ids`, as `token_id:<number>`."""

    as_ids: bool = False

    def name(self, token_id: int, text: str) -> str:
        """One token on the wire."""
        return f"token_id:{token_id}" if self.as_ids else text

    def chat(self, logprobs: Iterable[TokenLogprob]) -> ChatLogprobs:
        """Of a message's content."""
        return ChatLogprobs(
            content=[
                ChatToken(
                    token=self.name(entry.token_id, entry.token),
                    logprob=finite(entry.logprob),
                    bytes=_utf8(entry.token),
                    top_logprobs=[
                        TopLogprob(
                            token=self.name(top.token_id, top.token),
                            logprob=finite(top.logprob),
                            bytes=_utf8(top.token),
                        )
                        for top in entry.top
                    ],
                )
                for entry in logprobs
            ]
        )

    def text(self, tokens: Iterable[TextToken]) -> CompletionLogprobs:
        """Of a text."""
        logprobs = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for token in tokens:
            logprobs.tokens.append(self.name(token.token_id, token.text))
            logprobs.text_offset.append(token.offset)
            entry = token.entry
            logprobs.token_logprobs.append(None if entry is None else finite(entry.logprob))
            logprobs.top_logprobs.append(
                None
                if entry is None
                else {self.name(top.token_id, top.token): finite(top.logprob) for top in entry.top}
            )
        return logprobs

    def prompt(self, logprobs: Sequence[TokenLogprob | None]) -> PromptLogprobs:
        """Of a prompt: every token's own entry first, then the likeliest ones."""
        return [None if entry is None else self._candidates(entry) for entry in logprobs]

    def _candidates(self, entry: TokenLogprob) -> dict[int, PromptLogprob]:
        ranks = {top.token_id: rank for rank, top in enumerate(entry.top, 1)}
        found = {
            entry.token_id: PromptLogprob(
                logprob=finite(entry.logprob),
                rank=ranks.get(entry.token_id, entry.rank),
                decoded_token=self.name(entry.token_id, entry.token),
            )
        }
        for top in entry.top:
            found.setdefault(
                top.token_id,
                PromptLogprob(
                    logprob=finite(top.logprob),
                    rank=ranks[top.token_id],
                    decoded_token=self.name(top.token_id, top.token),
                ),
            )
        return found


def _utf8(token: str) -> list[int]:
    return list(token.encode(errors="replace"))
