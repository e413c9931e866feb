"""Loading GGUF models in tests, and requests to them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from enginebay import (
    BackendSettings,
    BackendUnavailableError,
    GenerationRequest,
    Media,
)
from enginebay_llamacpp.engine import LlamaCppEngine
from enginebay_llamacpp.loading import load_engine
from enginebay_llamacpp.options import LlamaCppOptions
from tests.run import request as request


def load(path: Path, **options: Any) -> LlamaCppEngine:
    chosen = LlamaCppOptions(**{"threads": 1, **options})
    return load_engine(
        BackendSettings(name="tiny", path=str(path), base=str(path.parent), options=chosen)
    )


def asked(
    engine: LlamaCppEngine, pieces: Sequence[str | Media], id: str = "r", **more: Any
) -> GenerationRequest:
    """A request whose prompt has media."""
    prompt = engine.tokenize_media(pieces, add_special_tokens=True)
    return replace(request(prompt.token_ids, id=id, **more), media=prompt.spans)


def refusal(path: Path, **options: Any) -> str:
    with pytest.raises(BackendUnavailableError) as caught:
        load(path, **options)
    assert str(path) in caught.value.message
    return caught.value.message
