"""Engines of exllamav2 that see, what is asked of them, and whether the answers are right."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from enginebay import GenerationRequest, Media, MediaPrompt
from tests.backends.exllamav2_seeing import Seeing, make_seeing_model
from tests.run import Run, request

BOUND = 0.04  # nats; all is computed in float16


class Model:
    """A folder, transformers' model of it, and engines."""

    def __init__(self, folder: Path, family: str, load: Callable[..., Any]) -> None:
        self.folder = folder
        self.family = family
        self.reference: Seeing = make_seeing_model(folder, family)
        self._load = load
        self.engine = self.load()

    def load(self, **options: Any) -> Any:
        sizes = {"context_length": 1024, "max_batch_size": 6, "prefill_tokens": 256}
        return self._load(self.folder, **{**sizes, **options})


def prompt(engine: Any, *pieces: str | Media) -> MediaPrompt:
    made: MediaPrompt = engine.tokenize_media(pieces, add_special_tokens=True)
    return made


def ask(engine: Any, pieces: Sequence[str | Media], **sampling: Any) -> GenerationRequest:
    made = prompt(engine, *pieces)
    return replace(request(made.token_ids, **sampling), media=made.spans)


def check_logprobs(model: Model, run: Run, asked: GenerationRequest, bound: float = BOUND) -> None:
    """Transformers says the same of the choice's tokens, and that each was the best."""
    never = model.engine._media.row_ids["image"]
    token_ids = run.token_ids(asked.request_id)
    theirs = model.reference.logprobs(MediaPrompt(asked.prompt_token_ids, asked.media), token_ids)
    theirs[:, never] = -torch.inf
    theirs = theirs.log_softmax(-1)
    deltas = run.deltas[asked.request_id, 0]
    entries = [entry for delta in deltas for entry in delta.logprobs]
    for place, token_id in enumerate(token_ids):
        best = float(theirs[place, : model.engine._usable].max())
        assert float(theirs[place, token_id]) == pytest.approx(best, abs=2 * bound)
        if entries and entries[0].token_id == token_id:  # special tokens have no entry
            mine = entries.pop(0).logprob
            assert mine == pytest.approx(float(theirs[place, token_id]), abs=bound)
    assert not entries
