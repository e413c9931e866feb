"""The engine over the library's dynamic generator: choices, company, pages, failures."""

from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from core.testing import check_backend
from tests.backends.conftest import LoadExLlamaV2
from tests.backends.tiny import greedy_reference
from tests.run import Run, request
from tests.support import DEMO_MODEL

TEXTS = (
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWhat is the weather in Rome?<|im_end|>\n<|im_start|>assistant\n",
)


@pytest.fixture(scope="module")
def engine(load_exllamav2: LoadExLlamaV2) -> Any:
    return load_exllamav2(DEMO_MODEL)


@pytest.fixture(scope="module")
def reference() -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(DEMO_MODEL).float().eval()


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(DEMO_MODEL)
    return [tokenizer.encode(text) for text in TEXTS]


async def test_check_backend(load_exllamav2: LoadExLlamaV2) -> None:
    await check_backend(lambda: load_exllamav2(DEMO_MODEL), prompt=TEXTS[2])


def test_greedy(engine: Any, reference: PreTrainedModel, prompts: list[list[int]]) -> None:
    run = Run(engine, *(request(p, id=str(i), max_tokens=30) for i, p in enumerate(prompts)))
    run.finish()
    for number, prompt in enumerate(prompts):
        assert run.token_ids(str(number)) == greedy_reference(reference, prompt, 30)
