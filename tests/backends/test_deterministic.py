"""A request with a seed is answered alike, whether or not its prefix is cached. REAL-9"""

import random
from pathlib import Path
from typing import Any

import pytest

from demo.to_gguf import convert
from enginebay.config.schema import Config
from enginebay.plugins import Plugins
from tests.support import DEMO_MODEL, Server, serve

_REQUESTS = 30
_WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "tree",
    "house",
    "runs",
    "sees",
    "small",
    "old",
    "red",
    "happy",
    "under",
    "and",
    "then",
    "because",
]


def config(engine: str, folder: Path) -> Config:
    path = DEMO_MODEL
    if engine == "llamacpp":
        pytest.importorskip("llama_cpp", exc_type=ImportError)
        path = folder / "demo.gguf"
        convert(DEMO_MODEL, path, "f32")
    options = {"deterministic": True, "prompt_lookup": 4}
    model = {"name": "m", "backend": engine, "path": str(path), "options": options}
    return Config.model_validate({"models": [model]})


def asked(server: Server, number: int, seed: int) -> tuple[list[int], int]:
    """The tokens of an answer, and how many tokens of its prompt were cached."""
    choose = random.Random(number)
    prompt = " ".join(choose.choices(_WORDS, k=choose.randint(5, 120)))
    body: dict[str, Any] = {"model": "m", "max_tokens": 40, "temperature": 1.3, "seed": seed}
    body |= {"return_token_ids": True, "ignore_eos": True, "prompt": prompt}
    answer = server.http.post("/v1/completions", json=body).json()
    details = answer["usage"].get("prompt_tokens_details") or {}
    return answer["choices"][0]["token_ids"], details.get("cached_tokens", 0)


@pytest.mark.parametrize("engine", ["hf", "llamacpp"])
def test_seeds_repeat(engine: str, tmp_path: Path) -> None:
    with serve(config(engine, tmp_path), Plugins()) as server:
        for number in range(_REQUESTS):
            first, again = (asked(server, number, seed=number) for _ in range(2))
            assert again == first
            assert first[1] == 0
            assert asked(server, number, seed=number + 1) != first
        unseeded = {"model": "m", "prompt": "the cat and the dog and the tree", "max_tokens": 1}
        for _ in range(2):
            usage = server.http.post("/v1/completions", json=unseeded).json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] > 0
