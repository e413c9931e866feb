"""What servers of completions answer, for a `fake`."""

from typing import Any

from fake import Answer

PATH = "/v1/completions"


def choice(text: str, **more: Any) -> dict[str, Any]:
    """An event with one choice."""
    return {"choices": [{"index": 0, "text": text, **more}]}


def vllm(answer: bytes) -> dict[str, list[Answer]]:
    """Answers of vLLM."""
    card = {"id": "m", "owned_by": "vllm", "max_model_len": 100}
    return {
        "/v1/models": [(200, {"data": [card]})],
        "/tokenize": [(200, {"tokens": [7, 8], "count": 2})],
        "/detokenize": [(200, {"prompt": "x"})],
        PATH: [(200, choice("x", token_ids=[9], finish_reason="length")), (200, answer)],
    }
