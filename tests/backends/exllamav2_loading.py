"""Engines of the backend exllamav2, without a GPU."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from enginebay import BackendSettings

LoadExLlamaV2 = Callable[..., Any]


@pytest.fixture(scope="module")
def load_exllamav2(exllamav2_on_cpu: ModuleType) -> Iterator[LoadExLlamaV2]:
    """`load_exllamav2(folder, **options)` makes an engine without a GPU."""
    from backends.exllamav2 import loading
    from backends.exllamav2.options import ExLlamaV2Options

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "check_library", lambda **_: None)
        patch.setattr(loading, "building", lambda _: nullcontext())

        def load(folder: Path, **options: Any) -> Any:
            small = {"context_length": 2048, "max_batch_size": 8, "prefill_tokens": 512}
            chosen = ExLlamaV2Options.model_validate(small | options)
            settings = BackendSettings(name="exl2", path=str(folder), options=chosen)
            return loading.load_engine(settings)

        yield load
