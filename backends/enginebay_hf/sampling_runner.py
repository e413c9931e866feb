"""The sampling half of a runner, independent of how the model runs."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from enginebay import (
    GenerationRequest,
    Mask,
    RowSampler,
    Runner,
    Sampled,
    TokenLogprob,
    TokenText,
)
from enginebay_hf.sampler_state import SamplerState, is_sampled_together
from enginebay_hf.sampling import logprobs, sample, token_logprobs


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What sampling needs from a tokenizer.

    The text of a token or its bytes, how many tokens there are, and which of them end a completion.
    """

    token_text: TokenText
    size: int
    eos_token_ids: frozenset[int] = frozenset()


class SamplingRunner(Runner[Tensor, SamplerState]):
    """A runner whose logits are a float32 tensor `[rows, vocabulary]` on any device."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def sampler(self, request: GenerationRequest, index: int) -> SamplerState:
        params, prompt = request.sampling, request.prompt_token_ids
        ends = frozenset() if params.ignore_eos else self._vocabulary.eos_token_ids
        ends = ends.union(params.stop_token_ids)
        row_sampler = RowSampler(
            params,
            prompt,
            index,
            end_token_ids=ends,
            vocab_size=self._vocabulary.size,
            token_text=self._vocabulary.token_text,
        )
        together = is_sampled_together(params)
        return SamplerState(params, prompt, index, ends, row_sampler, together)

    @torch.inference_mode()
    def sample(
        self,
        logits: Tensor,
        rows: Sequence[int],
        samplers: Sequence[SamplerState],
        masks: Sequence[Mask | None],
    ) -> list[Sampled]:
        if not samplers:
            return []
        if list(rows) != list(range(len(logits))):
            logits = logits[torch.tensor(rows, device=logits.device)]
        tokens = sample(logits, samplers, masks)
        entries = logprobs(logits, tokens, samplers, self._vocabulary.token_text)
        token_ids = tokens.tolist()
        for sampler, token_id in zip(samplers, token_ids, strict=True):
            sampler.append(token_id)
        return [Sampled(*pair) for pair in zip(token_ids, entries, strict=True)]

    @torch.inference_mode()
    def force(self, logits: Tensor, row: int, sampler: SamplerState, token_id: int) -> Sampled:
        token = torch.tensor([token_id], device=logits.device)
        text = self._vocabulary.token_text
        [entry] = logprobs(logits[row : row + 1], token, [sampler], text)
        sampler.append(token_id)
        return Sampled(token_id, entry)

    def accept(self, sampler: SamplerState, token_id: int) -> None:
        sampler.append(token_id)

    def restart(
        self,
        sampler: SamplerState,
        request: GenerationRequest,
        index: int,
        token_ids: Sequence[int],
    ) -> SamplerState:
        sampler.restart(token_ids)
        return sampler

    @torch.inference_mode()
    def logprobs(
        self, logits: Tensor, rows: Sequence[int], token_ids: Sequence[int], top: int
    ) -> list[TokenLogprob]:
        if not rows:
            return []
        device = logits.device
        return token_logprobs(
            logits[torch.tensor(rows, device=device)],
            torch.tensor(token_ids, device=device),
            [top] * len(rows),
            self._vocabulary.token_text,
            ranked=True,
        )
