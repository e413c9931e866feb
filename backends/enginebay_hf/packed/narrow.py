"""Linear layers and embeddings that store weights in 16 bits and compute in float32 (CPU).

Memory bandwidth limits the product of a few rows, so half of the bytes take half of the time. The
cost of torch's 16-bit product grows with each row on processors that do not multiply such numbers.
From a few rows on, blocks of weights are therefore widened to float32, in a buffer that fits the
cache. Two cores with AVX2 alone, 1 / 4 / 16 rows, next to a prepacked float32 product that stores
twice the bytes: 0.5 / 1.0 / 1.1 of the time.
"""

from collections.abc import Iterator
from copy import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from transformers import PreTrainedModel

from enginebay_hf.packed.fused import is_plain, plain_layers

FEW_ROWS = 3
"""Up to so many rows are multiplied in 16 bits."""

_BLOCK_BYTES = 4 << 20
_SMALLEST_SCALE = 1e-20


class NarrowLinear(nn.Module):
    """Stands for an `nn.Linear` in inference; the output has the input's number format."""

    def __init__(self, linear: nn.Linear, weight: Tensor) -> None:
        """`weight` has the layer's numbers in a 16-bit format."""
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.bias = linear.bias
        self._narrow = weight

    @property
    def weight(self) -> Tensor:
        """A copy of the weight in float32, for code that does not call the layer."""
        return self._narrow.float()

    def forward(self, hidden: Tensor) -> Tensor:
        """Multiply as `nn.Linear` does."""
        rows = hidden.reshape(-1, self.in_features)
        if len(rows) <= FEW_ROWS:
            product = few_rows(rows, self._narrow)
        else:
            product = many_rows(rows, self._narrow)
        if self.bias is not None:
            product = product + self.bias
        return product.to(hidden.dtype).view(*hidden.shape[:-1], self.out_features)


class NarrowEmbedding(nn.Module):
    """Stands for an `nn.Embedding` in inference, and widens the rows that it looks up."""

    def __init__(self, embedding: nn.Embedding, weight: Tensor) -> None:
        """`weight` has the embedding's numbers in a 16-bit format."""
        super().__init__()
        self.num_embeddings = embedding.num_embeddings
        self.embedding_dim = embedding.embedding_dim
        self._narrow = weight
        self._embedding = copy(embedding)
        self._embedding._parameters = {"weight": None}
        self._embedding.padding_idx = None  # an index of the whole table

    @property
    def weight(self) -> Tensor:
        """A copy of the table in float32, for code that does not call the embedding."""
        return self._narrow.float()

    def forward(self, ids: Tensor) -> Tensor:
        """Look up as the embedding does, with its own scale, if it has one."""
        rows = self._narrow[ids.flatten()].float()
        places = torch.arange(len(rows), device=ids.device).view(ids.shape)
        found: Tensor = functional_call(self._embedding, {"weight": rows}, (places,))
        return found

    def stands_for(self, embedding: nn.Embedding) -> bool:
        """Whether it finds what the embedding finds."""
        ids = torch.tensor([[0, 1, self.num_embeddings - 1]])
        try:
            found, expected = self(ids), embedding(ids).float()
        except Exception:
            return False
        return found.shape == expected.shape and torch.allclose(found, expected, rtol=0.01)


def few_rows(rows: Tensor, weight: Tensor) -> Tensor:
    """Return the product in 16 bits, in float32.

    float16 has three more bits than bfloat16 and a small range: each row is scaled to 1 at most.
    """
    if weight.dtype != torch.float16:
        return F.linear(rows.to(weight.dtype), weight).float()
    wide = rows.float()
    largest = wide.abs().amax(-1, keepdim=True).clamp_(min=_SMALLEST_SCALE)
    return F.linear((wide / largest).half(), weight) * largest


def many_rows(rows: Tensor, weight: Tensor) -> Tensor:
    """Return the product in float32, with one block of the weight after another.

    The weight comes first in each product, so that each thread multiplies the rows of a block that
    it has widened itself: the other order takes three times as long with two threads.
    """
    columns = rows.float().T
    product = torch.cat([block @ columns for block in widened(weight)])
    return product.T.contiguous()


def widened(weight: Tensor) -> Iterator[Tensor]:
    """Yield blocks of rows of a weight in float32, one buffer after another."""
    height = max(1, _BLOCK_BYTES // (4 * weight.shape[1]))
    buffer = torch.empty(min(height, len(weight)), weight.shape[1])
    for start in range(0, len(weight), height):
        block = weight[start : start + height]
        yield buffer[: len(block)].copy_(block)


@torch.inference_mode()
def narrow(model: PreTrainedModel) -> int:
    """Store plain linear layers and embeddings in float16 and compute all else in float32.

    Layers with numbers too large for float16 become float32, too. Return how many linear layers
    were replaced.
    """
    halves: dict[int, Tensor | None] = {}  # of weights that may be shared; None if too large
    replaced = 0
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if not (isinstance(layer, nn.Embedding) or is_plain(layer)):
                continue
            if id(layer.weight) not in halves:
                made = layer.weight.detach().half()
                halves[id(layer.weight)] = made if _fits(made) else None
            half = halves[id(layer.weight)]
            if half is None:
                continue
            if not isinstance(layer, nn.Embedding):
                setattr(parent, name, NarrowLinear(layer, half))
                replaced += 1
            elif (embedding := NarrowEmbedding(layer, half)).stands_for(layer):
                setattr(parent, name, embedding)
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            tensor.data = tensor.data.float()
    return replaced


def _fits(weight: Tensor) -> bool:
    """Whether no product with numbers of 1 at most exceeds the range of float16."""
    return all(
        float(block.abs().sum(-1).max()) < torch.finfo(torch.float16).max
        for block in widened(weight)
    )


def widen_for_many(model: PreTrainedModel) -> int:
    """Multiply many rows in blocks of float32, in a model that is computed in 16 bits."""
    replaced = 0
    for parent, name, layer in plain_layers(model):
        setattr(parent, name, NarrowLinear(layer, layer.weight.detach()))
        replaced += 1
    return replaced
