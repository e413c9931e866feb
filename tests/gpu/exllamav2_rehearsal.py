"""ExLlamaV2 without a GPU: in this process, over a stand-in for what it has compiled."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest

from backends.exllamav2 import loading
from tests import exllamav2_cpu


@contextmanager
def rehearsing() -> Iterator[None]:
    """Inside, engines on a thread of this process load, of models that are not quantised."""
    with exllamav2_cpu.installed(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "check_library", lambda **_: None)
        patch.setattr(loading, "building", lambda _: nullcontext())
        yield
