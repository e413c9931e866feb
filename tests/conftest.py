from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.support import Server, plugins_with, scripted, scripted_config, serve

ServeScripted = Callable[..., Server]


@pytest.fixture
def serve_scripted() -> Iterator[ServeScripted]:
    """`serve_scripted(script, **model_config)` runs a server whose model says what it is told."""
    with ExitStack() as stack:

        def start(script: Any, *, engine: dict[str, Any] | None = None, **model: Any) -> Server:
            plugins = plugins_with(scripted=scripted(script, **(engine or {})))
            return stack.enter_context(serve(scripted_config(**model), plugins))

        yield start
