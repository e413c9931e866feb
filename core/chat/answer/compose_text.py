"""Updates to OpenAI's wire form: text completions."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pydantic_core import to_json

from core.chat.answer.compose_openai import Head, OpenAIComposer, UsageForm
from core.chat.answer.logprobs import LogprobForm, TextToken
from core.chat.answer.usage import UsageCounter
from core.chat.schemas.completion_bodies import Completion, CompletionChoice
from core.chat.schemas.usage_bodies import WireAnswer
from core.contract.types import ContentDelta, FinishReason, TokenLogprob, Update

PromptLogprobs = Sequence[TokenLogprob | None]


@dataclass(frozen=True, slots=True)
class Echo:
    """An echoed prompt: the text, and its first token, which has no logprob."""

    text: str
    first_token_id: int
    first_token: str

    def tokens(self, logprobs: PromptLogprobs) -> Iterator[TextToken]:
        """Every token of the prompt; one that is not in the text (a BOS) takes no space."""
        yield TextToken(self.first_token_id, self.first_token, 0, None)
        offset = len(self.first_token) if self.text.startswith(self.first_token) else 0
        for entry in logprobs[1:]:
            assert entry is not None
            yield TextToken(entry.token_id, entry.token, min(offset, len(self.text)), entry)
            offset += len(entry.token)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What an answer returns besides its text.

    `logprobs` of its tokens, `prompt_logprobs` as vLLM has them, and how many choices of each
    prompt: the `best` ones by mean logprob, all if None.
    """

    logprobs: bool = False
    prompt_logprobs: bool = False
    best: int | None = None


class TextComposer(OpenAIComposer):
    """`text_completion` objects, for a non-streaming response or one event of a stream.

    `echoes`: the text each prompt's choices begin with; empty without `echo`. A stream with
    logprobs has one token per event, since some clients read only one.
    """

    def __init__(
        self,
        head: Head,
        prompts: int,
        choices: int,
        counter: UsageCounter,
        *,
        usage: UsageForm,
        prompt_token_ids: Sequence[list[int]] | None = None,
        shown: Shown | None = None,
        form: LogprobForm | None = None,
        echoes: Sequence[Echo] = (),
    ) -> None:
        super().__init__(head, choices, counter, usage=usage, prompt_token_ids=prompt_token_ids)
        self._shown = shown or Shown()
        self._form = form or LogprobForm()
        self._echoes = echoes
        self._each = choices // prompts
        self._prompt_logprobs: list[PromptLogprobs | None] = [None] * prompts
        offsets = [len(echo.text) for echo in echoes] or [0] * prompts
        self._texts = [_Text(offsets[index // self._each]) for index in range(choices)]

    def chunks(self, update: Update) -> Iterable[WireAnswer]:
        index = update.index
        self._note_prompt(update)
        text = self._texts[index]
        if not text.begun:
            text.begun = True
            yield from self._opening(index)
        self._token_ids[index] += update.token_ids
        parts = [part for part in update.parts if isinstance(part, ContentDelta)]
        pieces = [piece for part in parts for piece in self._cut(part)]
        for left, (piece, entries) in zip(reversed(range(len(pieces))), pieces, strict=True):
            choice = self._choice(index, piece, text.place(entries))
            yield self._wrap(choice, update.tokens - left)
        if update.finish_reason:
            choice = CompletionChoice(
                index=index, text="", logprobs=None, finish_reason=update.finish_reason
            )
            if update.stop_reason is not None:
                choice.stop_reason = update.stop_reason
            yield self._wrap(choice, update.tokens)

    def pieces(self, part: ContentDelta, choice: int) -> list[tuple[str, bytes | None]]:
        if not self._shown.logprobs:
            return [(part.text, None)]
        place = self._texts[choice].place
        return [(text, to_json(self._form.text(place(entries)))) for text, entries in split(part)]

    def mark(self, chunk: WireAnswer, text: str, token_ids: list[int]) -> object:
        assert isinstance(chunk, Completion)
        [choice] = chunk.choices
        choice.text = text
        if choice.token_ids is not None:
            choice.token_ids = token_ids
        return choice.logprobs

    def progress_chunk(self, update: Update) -> WireAnswer:
        return self._wrap(self._choice(update.index, "", ()), 0)

    def usage_chunk(self) -> WireAnswer:
        return self._answer([])

    def add(self, update: Update) -> None:
        self._note_prompt(update)
        self._token_ids[update.index] += update.token_ids
        self._texts[update.index].add(update)

    def whole(self) -> WireAnswer:
        return self.with_totals(self._answer(list(self._whole_choices())))

    def _whole_choices(self) -> Iterator[CompletionChoice]:
        best = self._shown.best or self._each
        for first in range(0, self.choices, self._each):
            shown: Sequence[int] = range(first, first + self._each)
            if best < self._each:
                by_logprob = sorted(shown, key=lambda i: self._texts[i].mean_logprob, reverse=True)
                shown = by_logprob[:best]
            prompt = first // self._each
            for position, made in enumerate(shown):
                choice = self._whole_choice(prompt * best + position, prompt, self._texts[made])
                self._add_token_ids(choice, made)
                yield choice

    def _whole_choice(self, index: int, prompt: int, text: "_Text") -> CompletionChoice:
        echo = self._echoes[prompt] if self._echoes else None
        tokens = self._echoed_tokens(prompt) + text.place(text.entries)
        choice = self._choice(index, (echo.text if echo else "") + "".join(text.pieces), tokens)
        choice.finish_reason = text.finish_reason
        if text.stop_reason is not None:
            choice.stop_reason = text.stop_reason
        self._add_prompt(choice, prompt)
        return choice

    def _opening(self, index: int) -> Iterator[Completion]:
        prompt = index // self._each
        logprobs = self._shown.prompt_logprobs and self._prompt_logprobs[prompt] is not None
        if self._echoes or logprobs or self._prompt_token_ids:
            echoed = self._echoes[prompt].text if self._echoes else ""
            choice = self._choice(index, echoed, self._echoed_tokens(prompt))
            self._add_prompt(choice, prompt)
            yield self._wrap(choice, 0)

    def _echoed_tokens(self, prompt: int) -> list[TextToken]:
        logprobs = self._prompt_logprobs[prompt]
        if not self._echoes or logprobs is None:
            return []
        return list(self._echoes[prompt].tokens(logprobs))

    def _note_prompt(self, update: Update) -> None:
        if update.prompt_logprobs is not None:
            self._prompt_logprobs[update.index // self._each] = update.prompt_logprobs

    def _add_prompt(self, choice: CompletionChoice, prompt: int) -> None:
        if self._prompt_token_ids:
            choice.prompt_token_ids = self._prompt_token_ids[prompt]
        logprobs = self._prompt_logprobs[prompt]
        if self._shown.prompt_logprobs and logprobs is not None:
            choice.prompt_logprobs = self._form.prompt(logprobs)

    def _add_token_ids(self, choice: CompletionChoice, made: int) -> None:
        """The tokens of a choice, of which `made` is the number it was made under."""
        if (token_ids := self.token_ids_since(made)) is not None:
            choice.token_ids = token_ids

    def _cut(self, part: ContentDelta) -> list[tuple[str, Sequence[TokenLogprob]]]:
        return split(part) if self._shown.logprobs else [(part.text, ())]

    def _choice(self, index: int, text: str, tokens: Sequence[TextToken]) -> CompletionChoice:
        logprobs = self._form.text(tokens) if self._shown.logprobs else None
        return CompletionChoice(index=index, text=text, logprobs=logprobs, finish_reason=None)

    def _wrap(self, choice: CompletionChoice, tokens: int) -> Completion:
        self._add_token_ids(choice, choice.index)
        return self.with_usage(self._answer([choice]), choice.index, tokens)

    def _answer(self, choices: list[CompletionChoice]) -> Completion:
        return Completion(
            id=self.head.id,
            object="text_completion",
            created=self.head.created,
            model=self.head.model,
            system_fingerprint=self.head.fingerprint,
            choices=choices,
        )


class _Text:
    """What one choice has gained so far; `offset` is where the text of its next token begins."""

    def __init__(self, offset: int) -> None:
        self.begun = False
        self.offset = offset
        self.pieces: list[str] = []
        self.entries: list[TokenLogprob] = []
        self.finish_reason: FinishReason = "stop"
        self.stop_reason: str | int | None = None

    def add(self, update: Update) -> None:
        for part in update.parts:
            if isinstance(part, ContentDelta):
                self.pieces.append(part.text)
                self.entries += part.logprobs
        if update.finish_reason:
            self.finish_reason = update.finish_reason
            self.stop_reason = update.stop_reason

    def place(self, entries: Iterable[TokenLogprob]) -> list[TextToken]:
        """The next tokens, each where it begins."""
        tokens = []
        for entry in entries:
            tokens.append(TextToken(entry.token_id, entry.token, self.offset, entry))
            self.offset += len(entry.token)
        return tokens

    @property
    def mean_logprob(self) -> float:
        logprobs = [entry.logprob for entry in self.entries]
        return sum(logprobs) / len(logprobs) if logprobs else -math.inf


def split(part: ContentDelta) -> list[tuple[str, Sequence[TokenLogprob]]]:
    """A piece of text for each of its logprobs; together they are the text.

    A token may be written otherwise alone than in a text (without its leading space).
    """
    pieces: list[tuple[str, Sequence[TokenLogprob]]] = []
    at = 0
    for entry in part.logprobs[:-1]:
        starts = (start for start in (at, at + 1) if part.text.startswith(entry.token, start))
        start = next(starts, None)
        end = at if start is None else start + len(entry.token)
        pieces.append((part.text[at:end], (entry,)))
        at = end
    return [*pieces, (part.text[at:], part.logprobs[-1:])]
