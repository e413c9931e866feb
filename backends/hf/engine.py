"""The engine: plain continuous batching for any model that transformers can run."""

import gc
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from backends.batching.completion import Completion
from backends.batching.limits import Limits
from backends.hf.runner import Batch, ModelRunner
from backends.hf.sampler_state import SamplerState
from backends.hf.sampling import logprobs, sample
from backends.hf.scheduler import Scheduler
from backends.hf.tokenizer import Tokenizer
from enginebay import (
    Delta,
    Engine,
    GenerationRequest,
    ModelInfo,
    ServingError,
    TokenLogprob,
)

logger = logging.getLogger(__name__)

Output = tuple[str, Delta | ServingError]


@dataclass(slots=True, eq=False)
class Row:
    """One choice that is being decoded: a row of the batch."""

    request_id: str
    sampler: SamplerState
    completion: Completion
    last_token: int = -1
    finished: bool = False

    def append(self, token_id: int, logprob: TokenLogprob | None) -> Delta:
        """What the choice gained by a sampled token."""
        self.last_token = token_id
        self.sampler.append(token_id)
        delta = self.completion.append(token_id, logprob)
        self.finished = delta.finish_reason is not None
        return delta


class HFEngine(Engine):
    """A step prefills one prompt, or decodes one token of every running row.

    A prompt is prefilled once and its cache repeated for each choice; rows join and leave the
    batch between steps.
    """

    def __init__(
        self,
        runner: ModelRunner,
        tokenizer: Tokenizer,
        info: ModelInfo,
        *,
        eos_token_ids: frozenset[int],
        max_batch_size: int,
        max_waiting: int = 0,
    ) -> None:
        self.info = info
        self._runner = runner
        self._tokenizer = tokenizer
        self._eos_token_ids = eos_token_ids
        self._limits = Limits(
            context_length=info.context_length, vocab_size=info.vocab_size, max_rows=max_batch_size
        )
        self._scheduler = Scheduler(max_rows=max_batch_size, max_waiting=max_waiting)
        self._rows: list[Row] = []
        self._batch = Batch()  # its rows are those of `_rows`, in the same order

    def add_request(self, request: GenerationRequest) -> None:
        self._limits.check(request)
        self._scheduler.add(request, running=len(self._rows))

    @torch.inference_mode()
    def step(self) -> list[Output]:
        request = self._scheduler.next_prefill(running=len(self._rows))
        return self._prefill(request) if request else self._decode()

    def abort_request(self, request_id: str) -> None:
        self._scheduler.abort(request_id)
        self._keep([i for i, row in enumerate(self._rows) if row.request_id != request_id])

    def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def detokenize(self, token_ids: Sequence[int]) -> str:
        self._limits.check_tokens(token_ids, "tokens")
        return self._tokenizer.decode(token_ids)

    def close(self) -> None:
        self._keep([])
        del self._runner
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _prefill(self, request: GenerationRequest) -> list[Output]:
        rows = [self._new_row(request, index) for index in range(request.n)]
        try:
            logits, cache = self._runner.prefill(request.prompt_token_ids)
            deltas = self._sample(logits.expand(request.n, -1), rows)
        except Exception as error:
            # Nothing of this request is in the batch yet, so the others are not concerned.
            logger.exception("request %s failed", request.request_id)
            message = f"the model failed on this prompt: {type(error).__name__}: {error}"
            return [(request.request_id, ServingError(message))]
        unfinished = [row for row in rows if not row.finished]
        if unfinished:
            self._batch.join(cache, len(request.prompt_token_ids), rows=len(unfinished))
            self._rows += unfinished
        deltas[0] = replace(deltas[0], prefill_tokens=len(request.prompt_token_ids))
        return [(request.request_id, delta) for delta in deltas]

    def _decode(self) -> list[Output]:
        if not self._rows:
            return []
        logits = self._runner.decode(self._batch, [row.last_token for row in self._rows])
        deltas = self._sample(logits, self._rows)
        outputs: list[Output] = [
            (row.request_id, d) for row, d in zip(self._rows, deltas, strict=True)
        ]
        self._keep([i for i, row in enumerate(self._rows) if not row.finished])
        return outputs

    def _sample(self, logits: Tensor, rows: Sequence[Row]) -> list[Delta]:
        samplers = [row.sampler for row in rows]
        tokens = sample(logits, samplers)
        entries = logprobs(logits, tokens, samplers, self._tokenizer.token_text)
        return [
            row.append(token_id, entry)
            for row, token_id, entry in zip(rows, tokens.tolist(), entries, strict=True)
        ]

    def _keep(self, indices: Sequence[int]) -> None:
        self._batch.keep(indices)
        self._rows = [self._rows[index] for index in indices]

    def _new_row(self, request: GenerationRequest, index: int) -> Row:
        params = request.sampling
        eos_token_ids = frozenset() if params.ignore_eos else self._eos_token_ids
        sampler = SamplerState(
            params,
            request.prompt_token_ids,
            index,
            end_token_ids=eos_token_ids.union(params.stop_token_ids),
        )
        completion = Completion(
            request,
            index,
            max_tokens=self._limits.max_tokens(request),
            eos_token_ids=self._eos_token_ids,
            decode=self._tokenizer.decode,
        )
        return Row(request.request_id, sampler, completion)
