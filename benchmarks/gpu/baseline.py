"""The peers of the throughput: what each engine's library does by itself, in this process."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

from benchmarks.gpu.engines import Device
from benchmarks.models import Model


class Baseline(Protocol):
    """A library that answers prompts of one length, all with as many tokens, greedily."""

    name: str

    def answer(self, prompts: Sequence[str], tokens: int) -> int:
        """How many tokens all answers have together."""
        ...


def tokens_per_second(baseline: Baseline, prompts: Sequence[str], tokens: int) -> float:
    """Completion tokens a second, prefill included; RuntimeError if an answer is shorter."""
    start = perf_counter()
    made = baseline.answer(prompts, tokens)
    seconds = perf_counter() - start
    if made != len(prompts) * tokens:
        raise RuntimeError(f"{baseline.name} made {made} tokens, not {len(prompts) * tokens}")
    return made / seconds


def peers(engine: str, model: Model, device: Device, slots: int, context: int) -> list[Baseline]:
    """The peers of an engine, with room for `slots` sequences at once of `context` tokens each."""
    if engine == "hf":
        return [Generate(model, device)]
    if engine == "llamacpp":
        return [LlamaCppPython(model, device, context)]
    return [ExLlamaV2(model, slots, context)]


class Generate:
    """`generate()` of transformers on one batch."""

    name = "generate()"

    def __init__(self, model: Model, device: Device) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(model.folder)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            model.folder, dtype=getattr(torch, model.dtype)
        )
        self._model = loaded.eval().to(device)

    def answer(self, prompts: Sequence[str], tokens: int) -> int:
        import torch

        asked = self._tokenizer(list(prompts), return_tensors="pt", add_special_tokens=False)
        asked = asked.to(self._model.device)
        with torch.inference_mode():
            whole = self._model.generate(
                input_ids=asked.input_ids,
                attention_mask=asked.attention_mask,
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                do_sample=False,
                pad_token_id=0,
            )
        return int(whole[:, asked.input_ids.shape[1] :].cpu().numel())  # waits for the device


class LlamaCppPython:
    """`Llama.create_completion()` of llama-cpp-python, which answers one prompt at a time."""

    name = "llama-cpp-python, one at a time"

    def __init__(self, model: Model, device: Device, context: int) -> None:
        from llama_cpp import Llama

        layers = -1 if device == "cuda" else 0
        self._llama = Llama(str(model.gguf), n_gpu_layers=layers, n_ctx=context, verbose=False)

    def answer(self, prompts: Sequence[str], tokens: int) -> int:
        made = 0
        for prompt in prompts:
            said: Any = self._llama.create_completion(prompt, max_tokens=tokens, temperature=0)
            made += said["usage"]["completion_tokens"]
        return made


class ExLlamaV2:
    """The library's dynamic generator and its own sampling, over a model as Enginebay loads it:
    without its attention over pages, the library needs flash-attn to run requests together.
    """

    name = "exllamav2's generator"

    def __init__(self, model: Model, slots: int, context: int) -> None:
        from enginebay_checkpoint.tokenizer import load_tokenizer
        from enginebay_exllamav2.folder import ExLlamaV2Checkpoint
        from enginebay_exllamav2.model import load_model
        from enginebay_exllamav2.options import ExLlamaV2Options

        options = ExLlamaV2Options(
            max_batch_size=slots, context_length=context, cache_tokens=slots * context
        )
        checkpoint = ExLlamaV2Checkpoint(model.folder)
        tokenizer = load_tokenizer(checkpoint, local_files_only=True)
        self._loaded = load_model(checkpoint, options, Path(), tokenizer, lambda *_: None)
        self._generator = self._loaded.new_generator()

    def answer(self, prompts: Sequence[str], tokens: int) -> int:
        from enginebay_exllamav2.library import generator

        for prompt in prompts:
            job = generator.ExLlamaV2DynamicJob(
                input_ids=self._loaded.tokenizer.encode(prompt),
                max_new_tokens=tokens,
                gen_settings=generator.ExLlamaV2Sampler.Settings.greedy(),
            )
            self._generator.enqueue(job)
        made = 0
        while self._generator.num_remaining_jobs():
            results: list[Mapping[str, Any]] = self._generator.iterate()
            made += sum(each["new_tokens"] for each in results if each["eos"])
        return made
