"""The engines that are checked, each with options, and how near to the reference it has to be."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from benchmarks.gpu.engines import REHEARSAL, Device, device_options, missing

SIZES = {"max_batch_size": 16, "context_length": 2048}


@dataclass(frozen=True, slots=True)
class Target:
    """An engine with options.

    `bound` is in nats: where the reference's two best logits are closer, the text may be another,
    and so far may a logprob be off. The bounds are chosen, from what the number formats round, and
    not fitted to what an engine does. `model` is one of the files of `tests.gpu.conftest.Models`.
    """

    name: str
    engine: str
    bound: float
    options: Mapping[str, Any] = field(default_factory=dict)
    model: str = "folder"

    def all_options(self, device: Device) -> dict[str, Any]:
        """What a config has of it."""
        return {**SIZES, **device_options(self.engine, device), **self.options}


MAIN = (
    Target("hf-float32", "hf", 0.001, {"dtype": "float32"}),
    Target("hf-float16", "hf", 0.05, {"dtype": "float16"}),
    Target("hf-bfloat16", "hf", 0.4, {"dtype": "bfloat16"}),
    Target("llamacpp", "llamacpp", 0.05, model="gguf"),
    Target("exllamav2", "exllamav2", 0.05),
    Target("exllamav2-unpaged", "exllamav2", 0.05, {"paged": False}),
)
"""Everything is checked of these."""

FIRST = (MAIN[1], MAIN[3], MAIN[4])
"""Of each engine what is checked before all else: one number format, its usual way to run."""

VARIANTS = (
    Target("hf-prompt-lookup", "hf", 0.001, {"dtype": "float32", "prompt_lookup": 3}),
    Target("llamacpp-prompt-lookup", "llamacpp", 0.05, {"prompt_lookup": 3}, "gguf"),
    Target("llamacpp-q8-cache", "llamacpp", 0.2, {"cache_type_k": "q8_0"}, "gguf"),
    Target("exllamav2-torch-attention", "exllamav2", 0.05, {"flash_attention": "off"}),
    Target("exllamav2-q8-cache", "exllamav2", 0.1, {"cache_type": "q8"}),
    Target("exllamav2-q6-cache", "exllamav2", 0.3, {"cache_type": "q6"}),
    Target("exllamav2-q4-cache", "exllamav2", 1.0, {"cache_type": "q4"}),
    Target("exllamav2-prompt-lookup", "exllamav2", 0.05, {"prompt_lookup": 3}),
    Target("exllamav2-draft-model", "exllamav2", 0.05, {"draft_model": "DRAFT"}),
    Target("exllamav2-gptq", "exllamav2", 0.1, model="gptq"),
)
"""Only the texts and logprobs are checked of these."""


def device() -> Device:
    """Where the checks run."""
    return "cpu" if os.environ.get(REHEARSAL) else "cuda"


def require(engine: str) -> None:
    """Skip the test, with the reason, if this machine cannot run the engine."""
    if reason := missing(engine, device()):
        pytest.skip(reason)


def params(targets: Sequence[Target]) -> list[Any]:
    """The targets as params of a fixture, each marked with its engine."""
    return [
        pytest.param(target, marks=getattr(pytest.mark, target.engine), id=target.name)
        for target in targets
    ]
