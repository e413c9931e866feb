"""Many requests through one model: prompts in chunks, choices together, a token a step."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np

from enginebay import (
    Completion,
    Constraint,
    ContextLengthExceededError,
    Delta,
    Detokenizer,
    Engine,
    GenerationRequest,
    Grammar,
    GrammarCompiler,
    InvalidRequestError,
    ModelInfo,
    ServingError,
    TokenLogprob,
    fill_masks,
)
from enginebay_onnx.choice import Choice
from enginebay_onnx.folder import Folder
from enginebay_onnx.model import Model
from enginebay_onnx.sampling import Sampler, token_logprob

CHUNK = 256  # tokens of a prompt in one step: as long as running streams have to wait


@dataclass(eq=False)
class Prompt:
    """A request that is not decoded yet, and how many of its tokens have been computed."""

    request: GenerationRequest
    choices: list[Choice]
    computed: int = 0
    cached: int = 0
    logprobs: list[TokenLogprob | None] = field(default_factory=lambda: [None])


class OnnxEngine(Engine):
    """Choice `i` of those that are decoded has row `i` of the model's memory.

    Prompts are prefilled in a row of their own, one after the other, all but the last token, which
    every choice runs itself. A prompt that begins like the one before is computed from where they
    differ.
    """

    def __init__(
        self,
        info: ModelInfo,
        folder: Folder,
        model: Model,
        compiler: GrammarCompiler | None,
        max_batch_size: int,
    ) -> None:
        """`model` must have a row more than `max_batch_size`."""
        self.info = info
        self._folder = folder
        self._model = model
        self._compiler = compiler
        self._prompt_row = self._max_batch_size = max_batch_size
        self._eos = frozenset(i for i in folder.end_token_ids if i < info.vocab_size)
        self._waiting: list[Prompt] = []
        self._prefilling: Prompt | None = None
        self._decoding: list[Choice] = []
        self._remembered: tuple[str | None, tuple[int, ...]] = (None, ())  # salt, tokens

    def add_request(self, request: GenerationRequest) -> None:
        self._check(request)
        choices = [self._choice(request, index) for index in range(request.n)]
        self._waiting.append(Prompt(request, choices))

    def step(self) -> list[tuple[str, Delta | ServingError]]:
        self._prefill()
        return list(self._decode()) if self._decoding else []

    def abort_request(self, request_id: str) -> None:
        self._waiting = [p for p in self._waiting if p.request.request_id != request_id]
        if self._prefilling and self._prefilling.request.request_id == request_id:
            self._prefilling = None
        self._remove(lambda choice: choice.request.request_id == request_id)

    def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return self._folder.encode(text, add_special_tokens=add_special_tokens)

    def detokenize(self, token_ids: Sequence[int]) -> str:
        return self._folder.decode(token_ids)

    def compile(self, grammar: Grammar) -> float:
        return self._compiler.compile(grammar) if self._compiler else super().compile(grammar)

    def _check(self, request: GenerationRequest) -> None:
        """Refuse what the model cannot run, before it can harm other requests."""
        prompt, params = request.prompt_token_ids, request.sampling
        if not prompt:
            raise InvalidRequestError("the prompt is empty", param="prompt")
        if len(prompt) >= self.info.context_length:
            raise ContextLengthExceededError(
                f"This model's maximum context length is {self.info.context_length} tokens, and "
                f"your prompt has {len(prompt)}. Please shorten it.",
                param="prompt",
            )
        if request.n > self._max_batch_size:
            raise InvalidRequestError(
                f"n is {request.n}, and this model decodes {self._max_batch_size} choices together",
                param="n",
            )
        if params.repetition_penalty <= 0:
            raise InvalidRequestError(
                "repetition_penalty must be above 0", param="repetition_penalty"
            )
        named = {"prompt": prompt, "logit_bias": params.logit_bias}
        named |= {n: getattr(params, n) for n in ("allowed_token_ids", "stop_token_ids")}
        for param, token_ids in named.items():
            if any(not 0 <= token_id < self.info.vocab_size for token_id in token_ids):
                raise InvalidRequestError(
                    f"{param} has token ids beyond 0 to {self.info.vocab_size - 1}", param=param
                )

    def _choice(self, request: GenerationRequest, index: int) -> Choice:
        prompt, params = request.prompt_token_ids, request.sampling
        room = self.info.context_length - len(prompt)
        ends = frozenset() if params.ignore_eos else self._eos
        ends = ends.union(params.stop_token_ids)
        constraint = None
        if self._compiler and params.constraint is not None:
            constraint = Constraint(self._compiler, params.constraint, ends)
        completion = Completion(
            request,
            index,
            max_tokens=min(params.max_tokens or room, room),
            eos_token_ids=self._eos,
            special_token_ids=self._folder.special_token_ids,
            detokenizer=Detokenizer(self._folder.decode),
            constraint=constraint,
        )
        return Choice(request, completion, Sampler(params, index, prompt, ends), list(prompt))

    def _prefill(self) -> None:
        """Compute a chunk of one prompt; a prompt that is complete goes on to be decoded."""
        prompt = self._prefilling = self._prefilling or self._admitted()
        if not prompt:
            return
        token_ids, params = prompt.request.prompt_token_ids, prompt.request.sampling
        start = prompt.computed
        end = min(start + CHUNK, len(token_ids) - 1)
        if start < end:
            asked = params.prompt_logprobs
            tokens = np.array([token_ids[start:end]])
            logits = self._model.run(self._prompt_row, tokens, [start])
            if asked is not None:
                followed = zip(logits[0], token_ids[start + 1 :], strict=False)
                text_of = self._folder.token_text
                prompt.logprobs += [token_logprob(row, t, asked, text_of) for row, t in followed]
            prompt.computed = end
            self._remembered = (prompt.request.cache_salt, token_ids[:end])
        if prompt.computed == len(token_ids) - 1:
            self._begin(prompt)

    def _admitted(self) -> Prompt | None:
        """The next prompt, if all its choices have room beside those that are decoded."""
        first = min(self._waiting, key=lambda prompt: prompt.request.priority, default=None)
        if not first or len(self._decoding) + first.request.n > self._max_batch_size:
            return None
        self._waiting.remove(first)
        salt, remembered = self._remembered
        if salt == first.request.cache_salt and first.request.sampling.prompt_logprobs is None:
            pairs = zip(remembered, first.request.prompt_token_ids[:-1], strict=False)
            first.cached = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        first.computed = first.cached
        return first

    def _begin(self, prompt: Prompt) -> None:
        self._prefilling = None
        for choice in prompt.choices:
            self._model.copy(self._prompt_row, len(self._decoding), prompt.computed)
            self._decoding.append(choice)
        first = prompt.choices[0]
        asked = prompt.request.sampling.prompt_logprobs is not None
        first.opening = {
            "prefill_tokens": len(first.token_ids) - prompt.cached,
            "cached_tokens": prompt.cached,
            "prompt_logprobs": tuple(prompt.logprobs) if asked else None,
        }

    def _decode(self) -> Iterator[tuple[str, Delta | ServingError]]:
        """A token for every choice, all in one run."""
        choices = self._decoding
        tokens = np.array([choice.token_ids[-1:] for choice in choices])
        starts = [len(choice.token_ids) - 1 for choice in choices]
        logits = self._model.run(0, tokens, starts)[:, 0]
        if self._compiler:
            completions = (choice.completion for choice in choices)
            constraints = (c.constraint for c in completions if c.forced is None)
            fill_masks(self._compiler, filter(None, constraints))
        ended: set[Choice] = set()
        failed: set[str] = set()
        for choice, row in zip(choices, logits, strict=True):
            request_id = choice.request.request_id
            if request_id in failed:
                continue
            try:
                delta = choice.next(row, self._folder)
            except ServingError as error:
                failed.add(request_id)
                yield request_id, error
                continue
            if delta.finish_reason:
                ended.add(choice)
            yield request_id, delta
        self._remove(lambda choice: choice in ended or choice.request.request_id in failed)

    def _remove(self, is_gone: Callable[[Choice], bool]) -> None:
        """Close the gaps that choices leave, each by the last one."""
        for row in reversed(range(len(self._decoding))):
            if is_gone(self._decoding[row]):
                last = self._decoding.pop()
                if row < len(self._decoding):
                    self._decoding[row] = last
                    self._model.copy(len(self._decoding), row, len(last.token_ids) - 1)
