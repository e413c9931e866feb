"""An engine without a model: it says what a script tells it to say."""

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice

from enginebay.contract.engine import Engine
from enginebay.contract.errors import (
    ContextLengthExceededError,
    ServingError,
    UnsupportedParameterError,
)
from enginebay.contract.grammar import Grammar
from enginebay.contract.media import Media, MediaPrompt, MediaSpan, Modality
from enginebay.contract.sampling_params import ReasoningBudget, SamplingParams
from enginebay.contract.types import (
    Delta,
    EngineFinishReason,
    EngineStats,
    GenerationRequest,
    ModelInfo,
    TokenLogprob,
    TopLogprob,
)
from enginebay.engine.failures import failure
from enginebay.engine.reasoning_budget import BudgetWatch
from enginebay.engine.repetition import REPETITION, RepetitionWatch, watches_repetition
from enginebay.engine.stop_strings import StopStrings
from enginebay.grammar.compiler import GrammarCompiler
from enginebay.testing.constrained import Constrained, utf8_compiler
from enginebay.testing.media import MEDIA, tokens_of

Script = Callable[[str, int], Iterable[str]]
"""`script(prompt, index)`: the output of choice `index`, one piece per step."""

END_OF_SEQUENCE = 0
_LONGEST_THOUGHT = 10_000  # characters; a script may have no end
_HONOURED = {
    "max_tokens",
    "stop",
    "stop_scope",
    "stop_token_ids",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "format_marks",
    "logprobs",
    "prompt_logprobs",
    "loop_detect_window",
    "repetition_detection",
    "reasoning_budget",
    "constraint",
}
CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"
    "{% if tools %}<tools>{{ tools | tojson }}\n{% endif %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


class _Script:
    """What a script says, until its thought is closed, of which it then skips the rest.

    A character a piece as soon as thought is watched, as each counts.
    """

    def __init__(self, pieces: Iterable[str], budget: ReasoningBudget | None) -> None:
        self._pieces = iter(pieces)
        self._said: list[str] = []
        self._watch: BudgetWatch | None = None
        if budget:
            self._watch_thought(budget)

    def end_reasoning(self, budget: ReasoningBudget) -> bool:
        """Close the thought now; whether there is any."""
        if self._watch is None:
            self._watch_thought(replace(budget, tokens=sys.maxsize))
        assert self._watch
        return self._watch.close()

    def _watch_thought(self, budget: ReasoningBudget) -> None:
        self._pieces = chain.from_iterable(self._pieces)
        self._end = budget.end
        self._watch = BudgetWatch(budget)
        for said in chain.from_iterable(self._said):
            self._watch.add(said)

    def __iter__(self) -> "_Script":
        return self

    def __next__(self) -> str:
        watch = self._watch
        if watch is None:
            said = next(self._pieces)
            self._said.append(said)
            return said
        forced = watch.forced
        said = next(self._pieces) if forced is None else chr(forced)
        watch.add(said)
        if forced is not None and watch.forced is None:
            self._skip_thought()
        return said

    def _skip_thought(self) -> None:
        skipped = ""
        for character in islice(self._pieces, _LONGEST_THOUGHT):
            skipped += character
            if skipped.endswith(self._end):
                break


@dataclass(slots=True)
class _Choice:
    request: GenerationRequest
    index: int
    script: _Script
    pieces: Iterator[str]
    stop: StopStrings
    constrained: Constrained | None
    repeats: RepetitionWatch | None
    token_ids: list[int] = field(default_factory=list)


class ScriptedEngine(Engine):
    """One token is one character, its id the code point; id 0 ends the sequence.

    Honours what it can without a model: `max_tokens`, the stops, `logprobs` and `prompt_logprobs`
    (every character is certain), what ends a repetition, `reasoning_budget`, `constraint`
    (`Constrained` says how, unless `constraints` is false). The other sampling params it declares
    as unsupported. There are no
    special tokens to skip.

    `media`: the kinds it takes. It reads them, and sees nothing: in the script's prompt an item is
    four characters `MEDIA`, a picture one more for each 65,536 of its pixels.

    A script that raises a `MemoryError` fails its request, as one does for which there is too
    little memory.
    """

    def __init__(
        self,
        script: Script | Sequence[str],
        *,
        context_length: int = 4096,
        chat_template: str | None = CHAT_TEMPLATE,
        constraints: bool = True,
        media: Collection[Modality] = (),
    ) -> None:
        self._script: Script = script if callable(script) else lambda prompt, index: script
        self._choices: list[_Choice] = []
        self._prefilled: set[str] = set()
        self._prompt_tokens = 0
        self.info = ModelInfo(
            context_length=context_length,
            vocab_size=0x110000,
            longest_token=1,
            chat_template=chat_template,
            unsupported=frozenset(SamplingParams.__dataclass_fields__) - _HONOURED,
            constraints=constraints,
            modalities=frozenset(media),
            placeholders={kind: f"<{kind}>" for kind in media},
            media_options=frozenset({"max_pixels"} if "image" in media else ()),
        )
        self._compiler: GrammarCompiler | None = utf8_compiler() if constraints else None

    def add_request(self, request: GenerationRequest) -> None:
        """Queue all choices of a request."""
        if len(request.prompt_token_ids) >= self.info.context_length:
            raise ContextLengthExceededError(
                f"This model's maximum context length is {self.info.context_length} tokens."
            )
        prompt = self.detokenize(request.prompt_token_ids)
        for index in range(request.n):
            script = _Script(self._script(prompt, index), request.sampling.reasoning_budget)
            constrained = self._constrained(request.sampling, script)
            pieces = iter(constrained) if constrained else iter(script)
            stop = StopStrings.of(request.sampling)
            watched = watches_repetition(request.sampling)
            repeats = RepetitionWatch(request.sampling) if watched else None
            self._choices.append(
                _Choice(request, index, script, pieces, stop, constrained, repeats)
            )

    def step(self) -> Iterable[tuple[str, Delta | ServingError]]:
        """One piece for every choice."""
        for choice in list(self._choices):
            if choice not in self._choices:
                continue
            request_id = choice.request.request_id
            try:
                delta = self._next(choice)
            except ServingError as error:
                self.abort_request(request_id)
                yield request_id, error
                continue
            except MemoryError as error:
                self.abort_request(request_id)
                yield request_id, failure(error, "this request")
                continue
            if delta.finish_reason:
                self._choices.remove(choice)
            yield request_id, delta

    def abort_request(self, request_id: str) -> None:
        """Drop the choices of a request."""
        self._choices = [c for c in self._choices if c.request.request_id != request_id]
        self._prefilled.discard(request_id)

    def end_reasoning(self, request_id: str, budget: ReasoningBudget) -> int:
        """Close the thought of a request's choices."""
        asked = [each for each in self._choices if each.request.request_id == request_id]
        return sum(each.script.end_reasoning(budget) for each in asked)

    def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """One id a character."""
        return [ord(character) for character in text]

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """One character an id."""
        return "".join(map(chr, token_ids))

    def tokenize_plain(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The same: no token is special."""
        return self.tokenize(text, add_special_tokens=add_special_tokens)

    def detokenize_plain(self, token_ids: Sequence[int]) -> str:
        """The same: no token is special."""
        return self.detokenize(token_ids)

    def tokenize_media(
        self, pieces: Sequence[str | Media], *, add_special_tokens: bool
    ) -> MediaPrompt:
        """One id a character, some ids an item."""
        if not self.info.modalities:
            return super().tokenize_media(pieces, add_special_tokens=add_special_tokens)
        token_ids: list[int] = []
        spans: list[MediaSpan] = []
        for piece in pieces:
            if isinstance(piece, Media):
                tokens = tokens_of(piece, len(spans))
                spans.append(MediaSpan(len(token_ids), tokens, piece))
                token_ids += [ord(MEDIA)] * tokens
            else:
                token_ids += self.tokenize(piece, add_special_tokens=False)
        return MediaPrompt(tuple(token_ids), tuple(spans))

    def compile(self, grammar: Grammar) -> float:
        """By the characters of UTF-8; from any thread."""
        if not self._compiler:
            return super().compile(grammar)
        return self._compiler.compile(grammar)

    def stats(self) -> EngineStats:
        """All choices run; nothing is remembered."""
        held = sum(len(c.request.prompt_token_ids) + len(c.token_ids) for c in self._choices)
        return EngineStats(
            running=len(self._choices),
            waiting=0,
            kv_used=held,
            cache_queries=self._prompt_tokens,
            cache_hits=0,
            preempted=0,
        )

    def _constrained(self, sampling: SamplingParams, script: Iterable[str]) -> Constrained | None:
        if sampling.constraint is None:
            return None
        if not self._compiler:
            raise UnsupportedParameterError(
                "this engine does not support constrained decoding", param="constraint"
            )
        return Constrained(self._compiler, sampling.constraint, script, sampling.stop_token_ids)

    def _next(self, choice: _Choice) -> Delta:
        sampling, constrained = choice.request.sampling, choice.constrained
        piece = next(choice.pieces, None)
        new = [END_OF_SEQUENCE] if piece is None else [ord(character) for character in piece]
        ended = piece is None or (constrained is not None and constrained.finished)
        finish_reason: EngineFinishReason | None = "stop" if ended else None
        stop_reason: str | int | None = None
        for at, token_id in enumerate(new):
            if token_id in sampling.stop_token_ids:
                new, finish_reason, stop_reason = new[: at + 1], "stop", token_id
                break
            may_end = constrained is None or (constrained.satisfied and not ended)
            if choice.repeats and choice.repeats.add(token_id) and may_end:
                new, finish_reason, stop_reason = new[: at + 1], "stop", REPETITION
                break
        room = self._limit(choice.request) - len(choice.token_ids)
        if len(new) > room or (len(new) == room and finish_reason is None):
            new, finish_reason, stop_reason = new[:room], "length", None
        choice.token_ids += new
        by_token = isinstance(stop_reason, int)
        stopped = by_token and not sampling.include_stop_str_in_output
        visible = new[:-1] if finish_reason == "stop" and (piece is None or stopped) else new
        text = choice.stop.feed(self.detokenize(visible))
        if choice.stop.found is not None:
            finish_reason, stop_reason = "stop", choice.stop.found
        elif finish_reason:
            text += choice.stop.finish()
        if finish_reason and constrained and not constrained.satisfied:
            finish_reason = "length"
        prefilled = self._prefill(choice.request)
        return Delta(
            index=choice.index,
            text=text,
            token_ids=tuple(new),
            logprobs=_logprobs(visible, sampling.logprobs),
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            prefill_tokens=prefilled,
            prompt_logprobs=_prompt_logprobs(choice.request) if prefilled else None,
            grammar_s=constrained.take_seconds() if constrained else 0.0,
        )

    def _limit(self, request: GenerationRequest) -> int:
        room = self.info.context_length - len(request.prompt_token_ids)
        return min(request.sampling.max_tokens or room, room)

    def _prefill(self, request: GenerationRequest) -> int:
        if request.request_id in self._prefilled:
            return 0
        self._prefilled.add(request.request_id)
        self._prompt_tokens += len(request.prompt_token_ids)
        return len(request.prompt_token_ids)


def _logprobs(
    token_ids: Sequence[int], asked: int | None, rank: int | None = None
) -> tuple[TokenLogprob, ...] | None:
    if asked is None:
        return None
    top = 1 if asked else 0
    return tuple(
        TokenLogprob(i, chr(i), 0.0, (TopLogprob(i, chr(i), 0.0),) * top, rank) for i in token_ids
    )


def _prompt_logprobs(request: GenerationRequest) -> tuple[TokenLogprob | None, ...] | None:
    asked = request.sampling.prompt_logprobs
    entries = _logprobs(request.prompt_token_ids[1:], asked, rank=1)
    return None if entries is None else (None, *entries)
