"""An engine without a model: it says what a script tells it to say."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from core.engine import Engine
from core.errors import ContextLengthExceededError, ServingError
from core.text.stop import StopStrings
from core.types import (
    Delta,
    EngineFinishReason,
    GenerationRequest,
    ModelInfo,
    SamplingParams,
    TokenLogprob,
    TopLogprob,
)

Script = Callable[[str, int], Iterable[str]]
"""`script(prompt, index)`: what choice `index` says, cut into one piece a step."""

END_OF_SEQUENCE = 0
_HONOURED = {"max_tokens", "stop", "stop_token_ids", "logprobs"}
CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"
    "{% if tools %}<tools>{{ tools | tojson }}\n{% endif %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@dataclass(slots=True)
class _Choice:
    request: GenerationRequest
    index: int
    pieces: Iterator[str]
    stop: StopStrings
    token_ids: list[int] = field(default_factory=list)


class ScriptedEngine(Engine):
    """One token is one character, its id the code point; id 0 ends the sequence.

    Honours what it can without a model: `max_tokens`, `stop`, `stop_token_ids`, `logprobs` (every
    character is certain). The other sampling params it declares as unsupported.
    """

    def __init__(
        self,
        script: Script | Sequence[str],
        *,
        context_length: int = 4096,
        chat_template: str | None = CHAT_TEMPLATE,
    ) -> None:
        self._script: Script = script if callable(script) else lambda prompt, index: script
        self._choices: list[_Choice] = []
        self._prefilled: set[str] = set()
        self.info = ModelInfo(
            context_length=context_length,
            vocab_size=0x110000,
            longest_token=1,
            chat_template=chat_template,
            unsupported=frozenset(SamplingParams.__dataclass_fields__) - _HONOURED,
        )

    def add_request(self, request: GenerationRequest) -> None:
        """Queue all choices of a request."""
        if len(request.prompt_token_ids) >= self.info.context_length:
            raise ContextLengthExceededError(
                f"This model's maximum context length is {self.info.context_length} tokens."
            )
        prompt = self.detokenize(request.prompt_token_ids)
        for index in range(request.n):
            pieces = iter(self._script(prompt, index))
            stop = StopStrings(request.sampling.stop)
            self._choices.append(_Choice(request, index, pieces, stop))

    def step(self) -> Iterable[tuple[str, Delta | ServingError]]:
        """One piece for every choice."""
        for choice in list(self._choices):
            delta = self._next(choice)
            if delta.finish_reason:
                self._choices.remove(choice)
            yield choice.request.request_id, delta

    def abort_request(self, request_id: str) -> None:
        """Drop the choices of a request."""
        self._choices = [c for c in self._choices if c.request.request_id != request_id]
        self._prefilled.discard(request_id)

    def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """One id a character."""
        return [ord(character) for character in text]

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """One character an id."""
        return "".join(map(chr, token_ids))

    def _next(self, choice: _Choice) -> Delta:
        sampling = choice.request.sampling
        piece = next(choice.pieces, None)
        new = [END_OF_SEQUENCE] if piece is None else [ord(character) for character in piece]
        finish_reason: EngineFinishReason | None = "stop" if piece is None else None
        stop_reason: str | int | None = None
        for at, token_id in enumerate(new):
            if token_id in sampling.stop_token_ids:
                new, finish_reason, stop_reason = new[: at + 1], "stop", token_id
                break
        room = self._limit(choice.request) - len(choice.token_ids)
        if len(new) > room or (len(new) == room and finish_reason is None):
            new, finish_reason, stop_reason = new[:room], "length", None
        choice.token_ids += new
        visible = new[:-1] if finish_reason == "stop" else new
        text = choice.stop.feed(self.detokenize(visible))
        if choice.stop.found is not None:
            finish_reason, stop_reason = "stop", choice.stop.found
        elif finish_reason:
            text += choice.stop.finish()
        return Delta(
            index=choice.index,
            text=text,
            token_ids=tuple(new),
            logprobs=self._logprobs(choice, visible),
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            prefill_tokens=self._prefill(choice.request),
        )

    def _limit(self, request: GenerationRequest) -> int:
        room = self.info.context_length - len(request.prompt_token_ids)
        return min(request.sampling.max_tokens or room, room)

    def _prefill(self, request: GenerationRequest) -> int:
        if request.request_id in self._prefilled:
            return 0
        self._prefilled.add(request.request_id)
        return len(request.prompt_token_ids)

    @staticmethod
    def _logprobs(choice: _Choice, token_ids: Sequence[int]) -> tuple[TokenLogprob, ...] | None:
        if choice.request.sampling.logprobs is None:
            return None
        top = 1 if choice.request.sampling.logprobs else 0
        return tuple(
            TokenLogprob(i, chr(i), 0.0, (TopLogprob(i, chr(i), 0.0),) * top) for i in token_ids
        )
