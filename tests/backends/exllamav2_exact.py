"""In place of a model: logits that follow from what the cache holds, the same in any batch.

So answers can be compared to the last token, and one key in a wrong place shows.
"""

from typing import Any
from zlib import crc32

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.backends.tiny import VOCAB_SIZE

SMALL_PAGE = 16
"""Tokens of a page under `small_pages`, so that short answers fill many."""


def small_pages(patch: pytest.MonkeyPatch) -> None:
    """Let engines that are made from now on have smaller pages than the library's."""
    from exllamav2.generator import dynamic

    from enginebay_exllamav2 import job, pages

    for module, name in ((dynamic, "PAGED_PAGE_SIZE"), (job, "PAGE"), (pages, "PAGE")):
        patch.setattr(module, name, SMALL_PAGE)


class ExactModel:
    """Takes the place of `forward_chunk` of a model and of its draft model, if it has one.

    The cache keeps the tokens themselves as keys, and the adapters they were run by as values. Much
    of a row follows from the last three tokens, so that there is something to guess.
    """

    def __init__(self, engine: Any) -> None:
        adapters = engine._model.adapters
        self._adapters = [None, *(adapters[name][0] for name in adapters.names)]
        for model in (engine._model.model, engine._model.draft_model):
            if model is not None:
                model.forward_chunk = self

    def __call__(
        self,
        input_ids: Tensor,
        attn_params: Any,
        cache: Any,
        loras: list[Any] | None = None,
        preprocess_only: bool = False,
        indexed_embeddings: Any = None,
    ) -> dict[str, Tensor]:
        keys, values = (states[0][0, :, 0, 0] for states in (cache.key_states, cache.value_states))
        logits = torch.zeros(*input_ids.shape, VOCAB_SIZE)
        count = input_ids.shape[1]
        for row, token_ids in enumerate(input_ids):
            if attn_params.paged:
                past = int(attn_params.cache_seqlens[row])
                size = attn_params.page_size
                positions = torch.arange(past + count)
                pages = attn_params.block_index[row][positions // size].long()
                places = pages * size + positions % size
            else:
                past = attn_params.past_len
                places = torch.arange(past + count)
            keys[places[past:]] = token_ids.to(keys.dtype)
            values[places[past:]] = self._adapters.index(loras[0] if loras else None)
            context = (keys[places] * 4 + values[places]).numpy().astype(np.int64)
            if not preprocess_only:
                for index in range(count):
                    logits[row, index] = _logits(context[: past + index + 1])
        return {} if preprocess_only else {"logits": logits}


def _logits(context: Any) -> Tensor:
    near, far = (
        np.random.default_rng(crc32(tokens.tobytes())).standard_normal(VOCAB_SIZE, np.float32)
        for tokens in (context[-3:], context)
    )
    return torch.from_numpy(3 * near + 0.7 * far)
