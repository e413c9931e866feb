"""The baseline of the throughput: transformers' own `generate()`, in this process."""

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.gpu.engines import Device
from benchmarks.models import Model


class Generate:
    """A batch of prompts of one length, all answered greedily with as many tokens."""

    def __init__(self, model: Model, device: Device) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(model.folder)
        dtype = getattr(torch, model.dtype)
        loaded = AutoModelForCausalLM.from_pretrained(model.folder, dtype=dtype)
        self._model: Any = loaded.eval().to(device)

    def tokens_per_second(self, prompts: Sequence[str], tokens: int) -> float:
        """Completion tokens of the whole batch a second, prefill included.

        RuntimeError if an answer has another length.
        """
        asked = self._tokenizer(list(prompts), return_tensors="pt", add_special_tokens=False)
        asked = asked.to(self._model.device)
        start = perf_counter()
        with torch.inference_mode():
            whole = self._model.generate(
                input_ids=asked.input_ids,
                attention_mask=asked.attention_mask,
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                do_sample=False,
                pad_token_id=0,
            )
        made = whole[:, asked.input_ids.shape[1] :].cpu()  # which waits for the device
        seconds = perf_counter() - start
        if made.shape != (len(prompts), tokens):
            raise RuntimeError(f"generate() made {tuple(made.shape)} tokens")
        return made.numel() / seconds
