"""Our backend over it, on threads of this process."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest

from enginebay_exllamav2 import loading
from tests.exllamav2_cpu.library import installed


@contextmanager
def backend_installed() -> Iterator[None]:
    """Inside, engines on a thread of this process load models that are not quantised."""
    with installed(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "check_library", lambda **_: None)
        patch.setattr(loading, "building", lambda _: nullcontext())
        yield
