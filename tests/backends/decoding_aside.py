"""Media that take as long to decode as a test likes, for engines that it steps by hand."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest

from tests.run import Run


@contextmanager
def undecoded(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> Iterator[threading.Event]:
    """Let the module's decoders return only after the event is set.

    They may not be called on this thread, which makes the engine's steps.
    """
    stepping, decodes = threading.current_thread(), threading.Event()

    def waiting(decode: Callable[..., Any]) -> Callable[..., Any]:
        def waits(*args: Any, **kwargs: Any) -> Any:
            assert threading.current_thread() is not stepping, "a step decodes an item"
            assert decodes.wait(60)
            return decode(*args, **kwargs)

        return waits

    with monkeypatch.context() as patched:
        for name in ("decode_picture", "decode_sound", "decode_video"):
            if decode := getattr(module, name, None):
                patched.setattr(module, name, waiting(decode))
        try:
            yield decodes
        finally:
            decodes.set()


def goes_on(run: Run, id: str, steps: int = 5) -> None:
    """Step an engine, and require that each step has a token of this request."""
    for _ in range(steps):
        before = len(run.token_ids(id))
        run.steps(1)
        assert len(run.token_ids(id)) == before + 1
