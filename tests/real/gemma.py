"""Gemma 3 270M on one of the engines, with what its peer says."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from enginebay.config.schema import Config
from tests.real import artifacts
from tests.real.peers import Said, by_llama_cpp, by_transformers
from tests.support import Server

SIZES = {"context_length": 1024, "cache_tokens": 4096, "max_batch_size": 4, "threads": 2}
PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Es war einmal ein König, der hatte",
    "日本の首都は",
]
STORY = (
    "The old lighthouse stood on a cliff above the sea. Every evening the keeper climbed its "
    "hundred steps, cleaned the glass and lit the lamp. Ships passed far away on the horizon, "
    "and the keeper counted them and wrote their number into a book. In winter the storms came, "
    "and on some days no ship could be seen at all. Then the keeper read old letters, repaired "
    "the nets of the fishermen from the village, and listened to the wind. The children of the "
    "village said that the lamp had never gone out, not once in a hundred years. One evening in "
    "autumn"
)
LONGER = f"{STORY} the"


@dataclass(frozen=True)
class Gemma:
    """The model for a backend, beside the texts of its peer.

    `bound`: nats by which its logits may differ from the peer's.
    """

    backend: str
    path: Path
    said: Mapping[str, Said]
    bound: float
    options: Mapping[str, Any] = field(default_factory=dict)

    def config(self, **loading: str) -> Config:
        """A server with the model."""
        model = {
            "name": "gemma",
            "backend": self.backend,
            "path": str(self.path),
            "options": {**SIZES, **self.options},
        }
        return Config.model_validate({"models": [model], "loading": loading})

    def agreement(self, prompt: str, answer: Any) -> int:
        """How many tokens are the peer's; a text leaves the peer's only where two are as likely."""
        return self.said[prompt].agreement(answer["choices"][0]["text"], self.bound)


def hf() -> Gemma:
    """In float32, as the peer has it."""
    folder = artifacts.folder()
    said = by_transformers(folder, [*PROMPTS, STORY, LONGER])
    return Gemma("hf", folder, said, 0.001, {"dtype": "float32"})


def llamacpp() -> Gemma:
    """llama.cpp multiplies quantized weights with other kernels for one row than for several.

    Its own logits of this file move by 0.2 nats if it reads a prompt token by token.
    """
    file = artifacts.gguf()
    return Gemma("llamacpp", file, by_llama_cpp(file, [*PROMPTS, STORY, LONGER]), 0.4)


def complete(server: Server, prompt: str, **body: Any) -> Any:
    """The answer to a greedy request of as many tokens as the peer says."""
    body = {"prompt": prompt, "temperature": 0, "max_tokens": 12, **body}
    response = server.http.post("/v1/completions", json=body, timeout=300)
    assert response.status_code == 200, response.text
    return response.json()


def cached_tokens(answer: Any) -> int:
    """How many tokens of the prompt were not computed again."""
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
