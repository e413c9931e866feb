"""What only ExLlamaV2 can get wrong: what its import does to the process, and its generator."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from enginebay.plugins import Plugins
from tests.gpu.conftest import MODEL, config
from tests.gpu.models import Models
from tests.gpu.parity import Reference
from tests.gpu.targets import MAIN, Target, params
from tests.support import Server, serve

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.parametrize(
        "target", params([t for t in MAIN if t.engine == "exllamav2"]), indirect=True
    ),
]
STORY = "Tell me a story about a train."


@pytest.fixture(scope="module")
def on_a_thread(target: Target, models: Models) -> Iterator[Server]:
    """The engine in this process, where a test can reach the library."""
    threads = torch.get_num_threads()
    with serve(config(target, models, isolation="thread"), Plugins()) as server:
        assert torch.get_num_threads() == threads, "loading has changed torch's CPU threads"
        yield server


def test_an_exception_of_the_generator_leaves_the_engine_alive(
    on_a_thread: Server, target: Target, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    from exllamav2.generator import ExLlamaV2DynamicGenerator

    iterate = ExLlamaV2DynamicGenerator.iterate
    raised: list[bool] = []

    def fail_once(self: Any) -> object:
        if not raised and self.num_remaining_jobs():
            raised.append(True)
            raise RuntimeError("the test says so")
        return iterate(self)

    expected = reference.answer(STORY, 16)

    def ask() -> int:
        answer = on_a_thread.http.post(
            "/v1/completions",
            json={"model": MODEL, "prompt": expected.prompt, "max_tokens": 16, "temperature": 0},
        )
        if answer.status_code == 200:
            assert expected.agreement(answer.json()["choices"][0]["text"], target.bound) >= 1
        return answer.status_code

    with monkeypatch.context() as patch:
        patch.setattr(ExLlamaV2DynamicGenerator, "iterate", fail_once)
        assert ask() in (200, 500)  # computed again, or blamed
        assert raised
    assert ask() == 200
