"""What memory a model will take, from the headers of its files."""

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from enginebay import BackendSettings, FreeMemory, MemoryEstimate, MemoryPart, MemoryUse
from enginebay_checkpoint.estimates import part_of, saved_kv, shorter_contexts
from enginebay_llamacpp.cache import cache_plan, draft_size
from enginebay_llamacpp.files import find_gguf, find_mmproj, size
from enginebay_llamacpp.memory import (
    Layout,
    PassSizes,
    PoolingSizes,
    compute_bytes,
    context_length,
    draft_options,
    output_bytes,
    placed,
)
from enginebay_llamacpp.options import AdapterOptions, LlamaCppOptions
from enginebay_llamacpp.shape import ModelShape

# Python, NumPy and llama.cpp in a process of their own; and CUDA's own part of a GPU.
_RUNTIME, _RUNTIME_GPU = 70 << 20, 300 << 20

_TOKENIZER, _BYTES_OF_A_TOKEN = 8 << 20, 500
"""What tokenizer and grammars take in Python and llama.cpp, and of that each token."""


def estimate_memory(settings: BackendSettings, free: FreeMemory) -> MemoryEstimate:
    """What the model will take. `free.gpu` counts only if llama-cpp-python was built for a GPU."""
    gpu = free.gpu if has_gpu_library() else None
    return estimated(settings, FreeMemory(free.ram, gpu, free.swap))


def has_gpu_library() -> bool:
    """Whether a llama-cpp-python is installed that can use a GPU; it is not imported."""
    found = importlib.util.find_spec("llama_cpp")
    folders = found.submodule_search_locations if found else None
    names = (file.name for folder in folders or () for file in Path(folder, "lib").glob("*ggml*"))
    kinds = ("cuda", "hip", "vulkan", "metal", "sycl", "musa", "opencl")
    return any(kind in name for name in names for kind in kinds)


def estimated(settings: BackendSettings, free: FreeMemory) -> MemoryEstimate:
    """What the model will take, on a GPU if `free` has one."""
    options, base = LlamaCppOptions.of(settings.options), Path(settings.base)
    path = find_gguf(Path(settings.path))
    shape = ModelShape.of(path, options.override_kv)
    gpu = free.gpu is not None and options.gpu_layers != 0
    layout = placed(shape, options, free.gpu if gpu else None)
    on_gpu = bool(layout.gpu_layers)
    chosen = _Caches.of(shape, options, layout, _left(free, layout, on_gpu), gpu=gpu)
    least = _Caches.of(shape, options, layout, FreeMemory(0, 0), gpu=gpu)
    known = (
        MemoryPart("weights", layout.ram, layout.gpu),
        MemoryPart("repacked_weights", layout.repacked),
        part_of("adapters", _adapter_bytes(options, base), gpu=on_gpu),
        part_of("mmproj", _mmproj_bytes(path, options, base), gpu=gpu),
        *_draft(settings, options, chosen.length, free, gpu),
        MemoryPart("vocabulary", _TOKENIZER + _BYTES_OF_A_TOKEN * shape.vocab_size),
        MemoryPart("runtime", _RUNTIME, _RUNTIME_GPU if gpu else 0),
    )
    fixed = [part for part in known if part.ram or part.gpu]
    saved = [] if chosen.pools else saved_kv(settings)
    parts = (*fixed[:1], *chosen.parts(layout, on_gpu), *saved, *fixed[1:])
    needed = [*fixed, *least.parts(layout, on_gpu)]
    return MemoryEstimate(
        parts=parts,
        least=MemoryUse(sum(p.ram for p in needed), sum(p.gpu for p in needed)),
        mapped=layout.ram if options.mmap and not options.mlock else 0,
        context_length=chosen.length,
        gpu_layers=layout.gpu_layers if gpu else None,
        layers=shape.layers + 1,
        short=chosen.short or (gpu and options.gpu_layers == "auto" and _spills(shape, layout)),
        smaller=tuple(_smaller(shape, path, options, chosen.length, free, gpu=gpu)),
        note=chosen.note,
    )


@dataclass(frozen=True, slots=True)
class _Caches:
    """What the context takes beside the weights: its cache, and what it computes with."""

    length: int
    tokens: int
    slots: int
    compute: int
    output: int
    short: bool
    note: str = ""
    pools: bool = False

    @classmethod
    def of(
        cls,
        shape: ModelShape,
        options: LlamaCppOptions,
        layout: Layout,
        free: FreeMemory,
        *,
        gpu: bool,
    ) -> "_Caches":
        if options.embeddings or (options.embeddings is None and (options.pooling or shape.pools)):
            sizes = PoolingSizes.of(shape, options, gpu=gpu)
            passes = PassSizes(sizes.together, sizes.together, 0)
            compute = compute_bytes(shape, passes, sizes.tokens, options)
            return cls(sizes.longest, sizes.tokens, 0, compute, 0, short=False, pools=True)
        plan = cache_plan(shape, options, layout, free, gpu=gpu)
        passes = PassSizes.of(options, plan.slots, gpu=gpu)
        return cls(
            length=plan.context_length,
            tokens=plan.tokens,
            slots=plan.slots,
            compute=compute_bytes(shape, passes, plan.largest().each, options),
            output=output_bytes(shape, passes),
            short=plan.is_short,
            note=plan.describe(),
        )

    def parts(self, layout: Layout, on_gpu: bool) -> list[MemoryPart]:
        cached = (int(self.tokens * layout.ram_token), int(self.tokens * layout.gpu_token))
        buffers = (self.output, self.compute) if on_gpu else (self.output + self.compute, 0)
        parts = [MemoryPart("kv_cache", *cached), MemoryPart("buffers", *buffers)]
        if layout.state_bytes:
            states = (self.slots * layout.ram_state, self.slots * layout.gpu_state)
            parts.append(MemoryPart("recurrent_states", *states))
        return parts


def _left(free: FreeMemory, layout: Layout, on_gpu: bool) -> FreeMemory:
    """What is free once the weights are loaded."""
    taken = MemoryUse(-layout.ram - layout.repacked, -layout.gpu)
    left = free + taken
    return left if on_gpu else FreeMemory(left.ram)


def _spills(shape: ModelShape, layout: Layout) -> bool:
    return layout.gpu_layers <= shape.layers


def _adapter_bytes(options: LlamaCppOptions, base: Path) -> int:
    paths = [a.path if isinstance(a, AdapterOptions) else a for a in options.adapters.values()]
    return sum(size(find_gguf(base / Path(path).expanduser())) for path in paths)


def _mmproj_bytes(path: Path, options: LlamaCppOptions, base: Path) -> int:
    if options.mmproj is False or options.embeddings:
        return 0
    if options.mmproj is None:
        file = find_mmproj(path)
    else:
        file = find_gguf(base / Path(options.mmproj).expanduser())
    return size(file) if file else 0


def _draft(
    settings: BackendSettings, options: LlamaCppOptions, length: int, free: FreeMemory, gpu: bool
) -> list[MemoryPart]:
    """All of a draft model in one."""
    if not options.draft_model:
        return []
    own = draft_options(options)
    path = find_gguf(Path(settings.base) / Path(options.draft_model).expanduser())
    shape = ModelShape.of(path)
    layout = placed(shape, own, free.gpu if gpu else None)
    cache, _ = draft_size(shape, options, length)
    passes = PassSizes.of(own, cache.slots, gpu=gpu)
    buffers = compute_bytes(shape, passes, cache.tokens, own)
    output = output_bytes(shape, passes) + _BYTES_OF_A_TOKEN * shape.vocab_size
    ram = layout.ram + layout.repacked + int(cache.tokens * layout.ram_token) + output
    on_gpu = layout.gpu + int(cache.tokens * layout.gpu_token)
    if layout.gpu_layers:
        return [MemoryPart("draft_model", ram, on_gpu + buffers)]
    return [MemoryPart("draft_model", ram + buffers)]


def _smaller(
    shape: ModelShape,
    path: Path,
    options: LlamaCppOptions,
    length: int,
    free: FreeMemory,
    *,
    gpu: bool,
) -> Iterator[dict[str, Any]]:
    """Changes with which it takes less memory, the mildest first."""
    asked = options.context_length or min(length, context_length(shape, options))
    yield from shorter_contexts(asked, options.cache_tokens)
    if options.flash_attention != "off" and {options.cache_type_k, options.cache_type_v} & {
        "f32",
        "f16",
        "bf16",
    }:
        yield {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}
    if gpu and shape.has_experts and not options.cpu_moe_layers:
        yield {"cpu_moe_layers": "all"}
    if gpu and options.gpu_layers != "auto":
        auto = options.model_copy(update={"gpu_layers": "auto"})
        yield {"gpu_layers": placed(shape, auto, free.gpu).gpu_layers}
    if options.max_batch_size > 4:
        yield {"max_batch_size": 4}
    if options.max_batch_size > 1:
        yield {"max_batch_size": 1}
    if not options.ubatch_tokens or options.ubatch_tokens > 128:
        yield {"ubatch_tokens": 128}
    if options.draft_model:
        yield {"draft_model": None}
    if options.mmproj is not False and find_mmproj(path):
        yield {"mmproj": False}
