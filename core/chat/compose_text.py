"""Updates to OpenAI's wire form: text completions."""

from collections.abc import Iterable

from pydantic import BaseModel

from core.chat.compose import Composer, finite
from core.generation import Update
from core.schemas.common import Usage
from core.schemas.completions import Completion, CompletionChoice, CompletionLogprobs
from core.types import ContentDelta, TokenLogprob


class TextComposer(Composer):
    """`text_completion` objects, whole or one event of a stream.

    `logprobs`: None is off, else how many candidates a token were asked for.
    """

    def __init__(self, id: str, model: str, choices: int, *, logprobs: int | None = None) -> None:
        super().__init__(id, model, choices)
        self._logprobs = logprobs
        self._updates: list[list[Update]] = [[] for _ in range(choices)]
        self._offsets = [0] * choices

    def opening(self) -> list[BaseModel]:
        return []

    def chunks(self, update: Update) -> Iterable[BaseModel]:
        if update.parts or update.finish_reason:
            yield self._wrap([self._choice(update.index, [update])])

    def usage_chunk(self, usage: Usage) -> BaseModel:
        chunk = self._wrap([])
        chunk.usage = usage
        return chunk

    def add(self, update: Update) -> None:
        self._updates[update.index].append(update)

    def whole(self, usage: Usage) -> BaseModel:
        answer = self._wrap([self._choice(i, updates) for i, updates in enumerate(self._updates)])
        answer.usage = usage
        return answer

    def _choice(self, index: int, updates: Iterable[Update]) -> CompletionChoice:
        choice = CompletionChoice(index=index, text="", logprobs=None, finish_reason=None)
        tokens: list[TokenLogprob] = []
        for update in updates:
            for part in update.parts:
                if isinstance(part, ContentDelta):
                    choice.text += part.text
                    tokens += part.logprobs
            if update.finish_reason:
                choice.finish_reason = update.finish_reason
                if update.stop_reason is not None:
                    choice.stop_reason = update.stop_reason
        if self._logprobs is not None:
            choice.logprobs = self._text_logprobs(index, tokens)
        return choice

    def _text_logprobs(self, index: int, tokens: list[TokenLogprob]) -> CompletionLogprobs:
        offsets = []
        for entry in tokens:
            offsets.append(self._offsets[index])
            self._offsets[index] += len(entry.token)
        return CompletionLogprobs(
            tokens=[entry.token for entry in tokens],
            token_logprobs=[finite(entry.logprob) for entry in tokens],
            top_logprobs=[
                {top.token: finite(top.logprob) for top in entry.top} for entry in tokens
            ],
            text_offset=offsets,
        )

    def _wrap(self, choices: list[CompletionChoice]) -> Completion:
        return Completion(
            id=self.id,
            object="text_completion",
            created=self.created,
            model=self.model,
            choices=choices,
        )
