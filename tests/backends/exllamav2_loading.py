"""Engines of the backend exllamav2, without a GPU."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from enginebay import BackendSettings
from tests.exllamav2_cpu import missing

LoadExLlamaV2 = Callable[..., Any]


@pytest.fixture(scope="module")
def load_exllamav2() -> Iterator[LoadExLlamaV2]:
    """`load_exllamav2(folder, **options)` makes an engine without a GPU."""
    if reason := missing():
        pytest.skip(reason)
    from tests.exllamav2_cpu.backend import backend_installed

    with backend_installed():
        from enginebay_exllamav2.loading import load_engine
        from enginebay_exllamav2.options import ExLlamaV2Options

        def load(folder: Path, **options: Any) -> Any:
            small = {"context_length": 2048, "max_batch_size": 8, "prefill_tokens": 512}
            chosen = ExLlamaV2Options.model_validate(small | options)
            settings = BackendSettings(name="exl2", path=str(folder), options=chosen)
            return load_engine(settings)

        yield load
