"""What other programs say with the same model: transformers and llama-cpp-python."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from llama_cpp import Llama
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.gpu.parity import Continuation

TOKENS = 12
CONTEXT = 256


@dataclass(frozen=True)
class Said:
    """A greedy continuation of a prompt, and the logprobs of all tokens at each place."""

    continuation: Continuation
    logprobs: torch.Tensor

    def agreement(self, text: str, bound: float) -> int:
        """How many tokens of a text are these; it leaves them only where two are as likely."""
        return self.continuation.agreement(text, bound)


def by_transformers(folder: Path, prompts: Sequence[str]) -> dict[str, Said]:
    """`generate` in float32."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def greedy(prompt: list[int]) -> list[int]:
        asked = torch.tensor([prompt])
        [whole] = model.generate(
            asked,
            attention_mask=torch.ones_like(asked),
            max_new_tokens=TOKENS,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        return whole[len(prompt) :].tolist()

    def logits(token_ids: list[int]) -> torch.Tensor:
        return model(torch.tensor([token_ids]), logits_to_keep=TOKENS).logits[0]

    with torch.inference_mode():
        return {
            prompt: _said(tokenizer.encode(prompt), greedy, logits, tokenizer.decode)
            for prompt in prompts
        }


def by_llama_cpp(file: Path, prompts: Sequence[str]) -> dict[str, Said]:
    """`Llama.generate` with a temperature of 0."""
    llama = Llama(str(file), n_ctx=CONTEXT, logits_all=True, verbose=False)

    def greedy(prompt: list[int]) -> list[int]:
        said = llama.generate(prompt, temp=0.0)
        return [next(said) for _ in range(TOKENS)]

    def logits(token_ids: list[int]) -> torch.Tensor:
        llama.reset()
        llama.eval(token_ids)
        rows = llama.scores[len(token_ids) - TOKENS : len(token_ids)]
        return torch.from_numpy(rows.copy())

    def decode(token_ids: list[int]) -> str:
        return llama.detokenize(token_ids).decode("utf-8", "replace")

    return {
        prompt: _said(llama.tokenize(prompt.encode()), greedy, logits, decode) for prompt in prompts
    }


def _said(
    prompt: list[int],
    greedy: Callable[[list[int]], list[int]],
    logits: Callable[[list[int]], torch.Tensor],
    decode: Callable[[list[int]], str],
) -> Said:
    said = greedy(prompt)
    rows = logits([*prompt, *said[:-1]])
    best = rows.topk(2).values
    logprobs = rows.log_softmax(-1)
    continuation = Continuation(
        prompt,
        said,
        [decode(said[: end + 1]) for end in range(TOKENS)],
        logprobs[range(TOKENS), said].tolist(),
        (best[:, 0] - best[:, 1]).tolist(),
        complete=False,
    )
    return Said(continuation, logprobs)
