"""From a batch of padded texts to the numbers of each: the last part of a pooling model.

A batch has its padding behind the texts: `ids` and `mask` are `[texts, longest]`, `lengths` are
`[texts]`. Nothing that is computed for a text depends on its padding.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts of a forward pass; `types` are their segments, for models that have some."""

    ids: Tensor
    mask: Tensor
    lengths: Tensor
    types: Tensor | None = None

    def inputs(self) -> dict[str, Tensor]:
        """Arguments of a model of transformers."""
        inputs = {"input_ids": self.ids, "attention_mask": self.mask}
        return inputs if self.types is None else {**inputs, "token_type_ids": self.types}

    def last(self, hidden: Tensor) -> Tensor:
        """What `hidden`, `[texts, longest, size]`, has at the last token of each text."""
        rows = torch.arange(len(hidden), device=hidden.device)
        return hidden[rows, self.lengths.to(hidden.device) - 1]


class Head(Protocol):
    """Runs the model and makes numbers of what it returns: `[texts, outputs]`."""

    def __call__(self, batch: Batch) -> Tensor: ...


class EmbeddingHead:
    """Poolings of the hidden states, joined, and the layers behind them (sentence-transformers)."""

    def __init__(self, model: Any, modes: Sequence[str], steps: Sequence[nn.Module]) -> None:
        self._model = model
        self._modes = modes
        self._steps = steps

    def __call__(self, batch: Batch) -> Tensor:
        hidden = self._model(**batch.inputs()).last_hidden_state.float()
        mask = batch.mask[..., None].to(hidden.dtype)
        embedding = torch.cat([_pooled(mode, hidden, mask, batch) for mode in self._modes], -1)
        for step in self._steps:
            embedding = step(embedding)
        return embedding


class DenseStep(nn.Module):
    """A linear layer with an activation."""

    def __init__(self, linear: nn.Linear, activation: nn.Module, residual: nn.Module | None):
        super().__init__()
        self._linear = linear
        self._activation = activation
        self._residual = residual

    def forward(self, embedding: Tensor) -> Tensor:
        """`[texts, in]` to `[texts, out]`."""
        output: Tensor = self._activation(self._linear(embedding))
        return output if self._residual is None else output + self._residual(embedding)


class NormalizeStep(nn.Module):
    """Scales embeddings to length 1."""

    def forward(self, embedding: Tensor) -> Tensor:
        """The same shape."""
        return normalize(embedding, dim=-1)


class ClassifierHead:
    """The head of a sequence classifier.

    One of a causal model is applied to the last token: transformers would look for the padding by
    its id, which a text may have, too.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._score = getattr(model, "score", None)

    @property
    def causal(self) -> bool:
        """Whether a token sees only those before it."""
        return self._score is not None

    def __call__(self, batch: Batch) -> Tensor:
        if self._score is None:
            logits: Tensor = self._model(**batch.inputs()).logits
            return logits
        hidden = self._model.base_model(**batch.inputs()).last_hidden_state
        scores: Tensor = self._score(batch.last(hidden))
        return scores


class AnswerHead:
    """How much likelier the model answers with one token than with another, as a logit."""

    def __init__(self, model: Any, true_token_id: int, false_token_id: int | None) -> None:
        self._model = model
        self._true, self._false = true_token_id, false_token_id
        self._keeps = "logits_to_keep" in inspect.signature(model.forward).parameters

    def __call__(self, batch: Batch) -> Tensor:
        ends = batch.lengths - 1
        kept, place = torch.unique(ends, return_inverse=True)
        keep = {"logits_to_keep": kept} if self._keeps else {}
        logits = self._model(**batch.inputs(), **keep).logits
        rows = torch.arange(len(logits), device=logits.device)
        logits = logits[rows, place if self._keeps else ends].float()
        score: Tensor = logits[:, self._true]
        if self._false is not None:
            score = score - logits[:, self._false]
        return score[:, None]


class ValueHead:
    """A linear layer on the last token's hidden state: a reward model of LLaMA-Factory or TRL."""

    def __init__(self, model: Any, linear: nn.Linear) -> None:
        self._model = model.base_model
        self._linear = linear

    def __call__(self, batch: Batch) -> Tensor:
        last = batch.last(self._model(**batch.inputs()).last_hidden_state)
        value: Tensor = self._linear(last.to(self._linear.weight.dtype))
        return value


def _pooled(mode: str, hidden: Tensor, mask: Tensor, batch: Batch) -> Tensor:
    """`[texts, size]` of hidden states `[texts, longest, size]` and their mask `[.., .., 1]`."""
    match mode:
        case "cls":
            return hidden[:, 0]
        case "lasttoken":
            return batch.last(hidden)
        case "max":
            return hidden.masked_fill(mask == 0, -torch.inf).amax(1)
        case "mean":
            return (hidden * mask).sum(1) / mask.sum(1)
        case "mean_sqrt_len_tokens":
            return (hidden * mask).sum(1) / mask.sum(1).sqrt()
        case "weightedmean":
            weights = mask * torch.arange(1, hidden.shape[1] + 1, device=mask.device)[:, None]
            return (hidden * weights).sum(1) / weights.sum(1)
    raise ValueError(f"there is no pooling {mode!r}")
