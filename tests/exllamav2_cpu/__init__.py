"""ExLlamaV2 0.3.2 on a CPU, so that its Python code is tested where there is no CUDA.

What is real: all Python code of the installed package `exllamav2`: the dynamic generator with its
page table, prefix reuse, defragmentation and speculation; jobs, banned strings and token healing;
sampler settings, DRY and filters; the tokenizer, the configuration, LoRA adapters, caches, vision
towers, and the layers of unquantised models, whose matrix products are PyTorch's own.

What stands in:

- `extension.py` for the compiled module `exllamav2_ext`, written from the C++ and CUDA sources that
  the package ships. `sampling.py`, `truncation.py` and `logits.py` choose the tokens that the C++
  chooses, its faults included; the order of tokens with exactly equal probabilities differs, and so
  does that of the tail when top probabilities are asked for. `kernels.py` computes in float32
  where CUDA computes in float16. `quantized_cache.py` has the Q8, Q6 and Q4 caches in their own
  layout. Quantised weights (EXL2, GPTQ), FP8 caches and tensor parallelism are missing: a
  call of theirs is an `AttributeError` with the function's name.
- `cuda.py` for `torch.cuda` and CUDA device names, in the modules of exllamav2 alone: the rest of
  the process keeps the real torch.

There is no flash-attention here: paged mode needs a function in its place, as on a GPU without it.

`installed()` is the way in; the fixture `exllamav2_on_cpu` of tests/conftest.py wraps it. By hand,
next to a compiled extension: `python -m tests.exllamav2_cpu.compare` shows where the two differ.
"""

from tests.exllamav2_cpu.library import installed, missing

__all__ = ["installed", "missing"]
