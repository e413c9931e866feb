"""Updates to OpenAI's wire form: text completions."""

import codecs
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pydantic_core import to_json

from enginebay.chat.answer.compose_openai import Head, OpenAIComposer, UsageForm
from enginebay.chat.answer.logprobs import LogprobForm, TextToken
from enginebay.chat.answer.usage import UsageCounter
from enginebay.chat.schemas.completion_bodies import Completion, CompletionChoice
from enginebay.chat.schemas.usage_bodies import WireAnswer
from enginebay.contract.types import ContentDelta, FinishReason, TokenLogprob, Update

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
        characters = _decoder()
        for entry in logprobs[1:]:
            assert entry is not None
            yield TextToken(entry.token_id, entry.token, min(offset, len(self.text)), entry)
            added = characters.decode(entry.added_bytes)
            if added[:1] == " " and not self.text.startswith(added, offset):
                added = added[1:]  # the tokenizer put the space there
            offset += len(added)


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
        pieces = [piece for part in parts for piece in self._cut(part, index)]
        for left, (piece, tokens) in zip(reversed(range(len(pieces))), pieces, strict=True):
            choice = self._choice(index, piece, tokens)
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
        pieces = self._texts[choice].split(part)
        return [(text, to_json(self._form.text(tokens))) for text, tokens in pieces]

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
        tokens = self._echoed_tokens(prompt) + text.tokens
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

    def _cut(self, part: ContentDelta, choice: int) -> list[tuple[str, Sequence[TextToken]]]:
        return self._texts[choice].split(part) if self._shown.logprobs else [(part.text, ())]

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
        self.pieces: list[str] = []
        self.tokens: list[TextToken] = []
        self._offset = offset
        self._characters = _decoder()
        self.finish_reason: FinishReason = "stop"
        self.stop_reason: str | int | None = None

    def add(self, update: Update) -> None:
        for part in update.parts:
            if isinstance(part, ContentDelta):
                self.pieces.append(part.text)
                self.tokens += [token for _, tokens in self.split(part) for token in tokens]
        if update.finish_reason:
            self.finish_reason = update.finish_reason
            self.stop_reason = update.stop_reason

    def split(self, part: ContentDelta) -> list[tuple[str, Sequence[TextToken]]]:
        """A piece of the next text for each of its tokens; together they are the text.

        A token that begins inside a character begins where the character does. The last token gets
        the characters that the others leave.
        """
        pieces: list[tuple[str, Sequence[TextToken]]] = []
        text, at = part.text, 0
        for left, entry in zip(reversed(range(len(part.logprobs))), part.logprobs, strict=True):
            token = TextToken(entry.token_id, entry.token, self._offset, entry)
            added = len(self._characters.decode(entry.added_bytes))
            self._offset += added
            end = at + added if left else len(text)
            pieces.append((text[at:end], (token,)))
            at = end
        return pieces or [(text, ())]

    @property
    def mean_logprob(self) -> float:
        logprobs = [token.entry.logprob for token in self.tokens if token.entry]
        return sum(logprobs) / len(logprobs) if logprobs else -math.inf


def _decoder() -> codecs.IncrementalDecoder:
    """Turns the bytes of tokens into characters, each with the byte that completes it."""
    return codecs.getincrementaldecoder("utf-8")("replace")
