from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from huggingface_hub import close_session

from tests.downloads.hub import FakeHub, running

StartHub = Callable[..., FakeHub]

CONTENT = bytes(range(256)) * 40
FILES = {"config.json": b"{}", "model.safetensors": CONTENT, "sub/tokenizer.json": b"[1, 2]"}


@pytest.fixture
def start_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[StartHub]:
    """`start_hub(files, **faults)` runs a hub that downloads come from; waits take no time."""
    monkeypatch.setattr("enginebay.models.downloads.hub._PAUSE", 0)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY", True)
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    with ExitStack() as stack:

        def start(files: dict[str, bytes] | None = None, **faults: Any) -> FakeHub:
            faults.setdefault("lfs", {"model.safetensors"})
            hub = FakeHub(dict(FILES if files is None else files), **faults)
            stack.enter_context(running(hub))
            monkeypatch.setenv("HF_ENDPOINT", hub.url)
            return hub

        stack.callback(close_session)
        yield start
