"""The demo model on a CUDA device: `make gpu-check`."""

from typing import Any

import pytest
import torch

from core.config.schema import Config
from core.plugins import Plugins
from core.testing import check_backend
from core.types import BackendSettings
from tests.support import DEMO_MODEL, Server, serve

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

PROMPTS = ["Hello!", "What is Enginebay?", "Tell me a story about a train.", "What is 7 + 5?"]


def greedy(server: Server) -> list[Any]:
    return [
        server.openai.chat.completions.create(
            model=server.openai.models.list().data[0].id,
            messages=[{"role": "user", "content": prompt}],
            temperature=0,
            max_tokens=60,
        )
        .choices[0]
        .message.content
        for prompt in PROMPTS
    ]


def test_greedy_answers_are_those_of_the_cpu(demo: Server) -> None:
    model = {
        "name": "cuda",
        "backend": "hf",
        "path": str(DEMO_MODEL),
        "options": {"device": "cuda", "dtype": "float32"},
    }
    with serve(Config.model_validate({"models": [model]}), Plugins()) as server:
        assert greedy(server) == greedy(demo)


async def test_the_contract_holds_on_cuda() -> None:
    plugins = Plugins()
    entry = plugins.backends["hf"]
    assert entry.options is not None
    options = entry.options(device="cuda", dtype="float32")
    settings = BackendSettings(name="cuda", path=str(DEMO_MODEL), options=options)
    await check_backend(lambda: entry.create(settings), prompt="Tell me a story about a train.")
