"""What memory a model will take, from its config.json and the headers of its weights."""

import importlib.metadata
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from enginebay import (
    BackendSettings,
    BackendUnavailableError,
    FreeMemory,
    MemoryEstimate,
    MemoryPart,
    MemoryUse,
)
from enginebay_checkpoint.estimates import is_short, part_of, saved_kv, shorter_contexts
from enginebay_checkpoint.folder import Checkpoint
from enginebay_hf.number_format import (
    FORMAT_BYTES,
    NumberFormat,
    choose_format,
    known_costs,
)
from enginebay_hf.options import HFOptions
from enginebay_hf.pooling.folder import pooling_folder
from enginebay_hf.sizing import context_length, draft_options, memory_sizes

# Python, torch and transformers in a process of their own; and CUDA's own part of a GPU.
_RUNTIME, _RUNTIME_GPU = 420 << 20, 500 << 20

_TOKENIZER, _BYTES_OF_A_TOKEN = 16 << 20, 1400
"""What tokenizer and grammars take, and of that each token."""

_BATCH_TOKENS, _BATCH_TOKENS_GPU = 256, 2048
_TRIED_TOKENS = 64  # that a model is run with when it is loaded, to see whether it is right
_WITHOUT_CACHE = ("linear_attention", "mamba", "conv", "recurrent")


def estimate_memory(settings: BackendSettings, free: FreeMemory) -> MemoryEstimate:
    """What the model will take. `free.gpu` counts only if torch was built for a GPU."""
    gpu = None if _torch_is_for_the_cpu() else free.gpu
    return estimated(settings, FreeMemory(free.ram, gpu, free.swap))


def estimated(settings: BackendSettings, free: FreeMemory) -> MemoryEstimate:
    """What the model will take, on a GPU if `free` has one and the options do not say otherwise."""
    options, base = HFOptions.of(settings.options), Path(settings.base)
    folder = pooling_folder(Path(settings.path), base, options)
    checkpoint = folder.checkpoint if folder else Checkpoint(Path(settings.path))
    checkpoint.check()
    gpu = options.device.startswith("cuda") or (options.device == "auto" and free.gpu is not None)
    shape = ModelShape.of(checkpoint, options, gpu=gpu)
    length = context_length(checkpoint, options, SimpleNamespace(**shape.config))
    weights = shape.weight_bytes
    packed = 0 if gpu else shape.prepacked_bytes(options)
    on_gpu = _on_gpu(checkpoint, options, weights, free.gpu or 0) if gpu else 0
    left = (free.gpu or 0) - on_gpu if gpu else free.ram + free.swap - weights - packed
    tokens = smallest = 0
    short = False
    if not folder:
        tokens, short = _cache(checkpoint, options, shape, length, left, gpu=gpu)
        smallest = options.cache_tokens or length
    fixed = [
        MemoryPart("weights", weights - on_gpu, on_gpu),
        part_of("prepacked_weights", packed, gpu=gpu),
        part_of("buffers", shape.buffer_bytes(options, length, gpu=gpu), gpu=gpu),
        part_of("adapters", _adapter_bytes(options, base), gpu=gpu),
        part_of("draft_model", _draft_bytes(options, base, length, gpu=gpu), gpu=gpu),
        MemoryPart("vocabulary", _TOKENIZER + _BYTES_OF_A_TOKEN * shape.number("vocab_size")),
        MemoryPart("runtime", _RUNTIME, _RUNTIME_GPU if gpu else 0),
    ]
    cache = part_of("kv_cache", tokens * shape.token_bytes, gpu=gpu)
    if not folder:
        states = options.max_batch_size * shape.state_bytes
        fixed.append(part_of("recurrent_states", states, gpu=gpu))
    saved = [] if folder else saved_kv(settings)
    least = part_of("kv_cache", smallest * shape.token_bytes, gpu=gpu)
    return MemoryEstimate(
        parts=tuple(p for p in (fixed[0], cache, *saved, *fixed[1:]) if p.ram or p.gpu),
        least=MemoryUse(sum(p.ram for p in (*fixed, least)), sum(p.gpu for p in (*fixed, least))),
        context_length=length,
        short=short,
        smaller=tuple(_smaller(options, length, tokens, gpu=gpu)),
    )


def _on_gpu(checkpoint: Checkpoint, options: HFOptions, weights: int, free: int) -> int:
    """Bytes of weights on GPUs: all of them, but with a `device_map` what fits beside the rest."""
    if options.device_map is None:
        return weights
    room = max(0, free - beside_weights(checkpoint, options) - _RUNTIME_GPU)
    if options.max_memory:
        given = (gib for name, gib in options.max_memory.items() if name != "cpu")
        room = min(room, int(sum(given) * 2**30))
    return min(weights, room)


def beside_weights(checkpoint: Checkpoint, options: HFOptions) -> int:
    """Bytes that GPUs must have beside the weights: the cache of one context, and buffers."""
    shape = ModelShape.of(checkpoint, options, gpu=True)
    length = context_length(checkpoint, options, SimpleNamespace(**shape.config))
    cache = (options.cache_tokens or length) * shape.token_bytes
    return cache + shape.buffer_bytes(options, length, gpu=True)


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a model; `config` is for its language part, `formats` is None if quantized."""

    checkpoint: Checkpoint
    config: dict[str, Any]
    formats: NumberFormat | None

    @classmethod
    def of(cls, checkpoint: Checkpoint, options: HFOptions, *, gpu: bool) -> "ModelShape":
        """As it is computed with these options."""
        whole = checkpoint.config
        text = whole.get("text_config") or whole.get("llm_config")
        config = {**whole, **text} if isinstance(text, dict) else dict(whole)
        chosen = choose_format(checkpoint, options, "cuda" if gpu else "cpu", known_costs)
        return cls(checkpoint, config, chosen)

    @property
    def weight_bytes(self) -> int:
        """Memory of the weights, in the formats that they are stored in."""
        if self.formats is None or not self.checkpoint.tensors:
            return self.checkpoint.stored_bytes
        if not self.formats.is_narrow:
            return sum(count for _, count in self.checkpoint.tensors) * self._bytes
        return sum(
            prod(tensor.shape) * FORMAT_BYTES[self.formats.weights if narrow else "float32"]
            for tensor in self.checkpoint.stored
            for narrow in [len(tensor.shape) == 2 and ".experts." not in tensor.name]
        )

    @property
    def token_bytes(self) -> int:
        """Of a token in the KV cache, in all layers."""
        layers = self._layers[0]
        heads = self.number("num_attention_heads", "n_head")
        shared = self.number("num_key_value_heads") or heads
        key = value = self.number("head_dim") or self._width // max(heads, 1)
        if self.number("kv_lora_rank"):  # multi-head latent attention, cached as it is computed
            shared = heads
            key = self.number("qk_nope_head_dim") + self.number("qk_rope_head_dim")
            value = self.number("v_head_dim")
        return layers * shared * (key + value) * self._bytes

    @property
    def state_bytes(self) -> int:
        """Memory of a sequence's recurrent states, as transformers keeps them, in float32."""
        if key := self.number("linear_key_head_dim"):  # gated delta nets
            keys = self.number("linear_num_key_heads") * key
            values = self.number("linear_num_value_heads") * self.number("linear_value_head_dim")
            numbers = key * values + self.number("linear_conv_kernel_dim") * (2 * keys + values)
        elif length := self.number("conv_L_cache"):  # short convolutions
            numbers = self._width * length
        elif size := self.number("mamba_d_state", "ssm_state_size", "state_size"):
            heads = self.number("mamba_n_heads", "mamba_num_heads", "num_heads")
            inner = self.number("mamba_d_ssm", "intermediate_size" if not heads else "")
            inner = inner or heads * self.number("mamba_d_head", "mamba_head_dim", "head_dim")
            groups = self.number("mamba_n_groups", "n_groups")
            kernel = self.number("mamba_d_conv", "conv_kernel")
            numbers = inner * size + kernel * (inner + 2 * groups * size)
        else:
            numbers = 0
        return self._layers[1] * numbers * FORMAT_BYTES["float32"]

    @property
    def _layers(self) -> tuple[int, int]:
        """How many layers have a KV cache, and how many have recurrent states."""
        layers = self.number("num_hidden_layers", "n_layer", "num_layers")
        kinds = self.config.get("layer_types") or self.config.get("layers_block_type")
        if isinstance(kinds, list):
            without = sum(str(kind).startswith(_WITHOUT_CACHE) for kind in kinds)
            return len(kinds) - without, without
        if isinstance(attending := self.config.get("attn_layer_indices"), list):
            return len(attending), layers - len(attending)
        attends = bool(self.number("num_attention_heads", "n_head"))
        return layers if attends else 0, layers  # some have both in each layer

    def prepacked_bytes(self, options: HFOptions) -> int:
        """Memory of an output layer that is prepacked in addition to the embedding it shares."""
        x86 = platform.machine().lower() in ("x86_64", "amd64")
        if not (options.prepack and x86 and self.formats) or options.device_map is not None:
            return 0
        if self.formats.is_narrow or self.formats.weights == "float16":
            return 0
        names = {tensor.name for tensor in self.checkpoint.stored}
        if not self.config.get("tie_word_embeddings", True) or "lm_head.weight" in names:
            return 0
        return self.number("vocab_size") * self._width * self._bytes

    def buffer_bytes(self, options: HFOptions, length: int, *, gpu: bool) -> int:
        """What a pass takes on the way: its widest layer, and the logits in float32.

        On a CPU also the scores of attention, which it does not compute in one go.
        """
        rows = options.batch_tokens or (_BATCH_TOKENS_GPU if gpu else _BATCH_TOKENS)
        feed_forward = self.number("intermediate_size", "n_inner") or 4 * self._width
        layer = rows * (6 * self._width + 3 * feed_forward) * self._bytes
        logits = max(options.max_batch_size, _TRIED_TOKENS) * self.number("vocab_size") * 8
        scores = 0 if gpu else rows * length * self.number("num_attention_heads", "n_head")
        return layer + logits + scores * self._bytes

    def number(self, *names: str) -> int:
        """The first of these that the configuration has; 0 without any."""
        found = (self.config.get(name) for name in names)
        return next((n for n in found if isinstance(n, int) and not isinstance(n, bool)), 0)

    @property
    def _width(self) -> int:
        return self.number("hidden_size", "n_embd", "d_model")

    @property
    def _bytes(self) -> int:
        return FORMAT_BYTES[self.formats.others if self.formats else "bfloat16"]


def _cache(
    checkpoint: Checkpoint,
    options: HFOptions,
    shape: ModelShape,
    length: int,
    left: int,
    *,
    gpu: bool,
) -> tuple[int, bool]:
    """Tokens of cache, as they are chosen at the load, and whether memory is short for them."""
    try:
        sizes = memory_sizes(
            checkpoint,
            options,
            context_length=length,
            bytes_per_token=shape.token_bytes,
            device="cuda" if gpu else "cpu",
            free=max(0, left),
            lazy=sys.platform == "linux" and not gpu,
        )
    except BackendUnavailableError:
        return options.cache_tokens or length, True
    return sizes.tokens, is_short(sizes.tokens, length)


def _adapter_bytes(options: HFOptions, base: Path) -> int:
    folders = [base / Path(path).expanduser() for path in options.adapters.values()]
    files = [file for folder in folders for file in folder.glob("adapter_model.*")]
    return sum(file.stat().st_size for file in files)


def _draft_bytes(options: HFOptions, base: Path, length: int, *, gpu: bool) -> int:
    """All of a draft model."""
    if not options.draft_model:
        return 0
    draft = Checkpoint(base / Path(options.draft_model).expanduser())
    draft.check()
    shape = ModelShape.of(draft, options, gpu=gpu)
    own_length = context_length(draft, HFOptions(), SimpleNamespace(**shape.config))
    own = draft_options(options, own_length, length)
    packed = 0 if gpu else shape.prepacked_bytes(own)
    cache = (own.cache_tokens or 0) * shape.token_bytes
    return shape.weight_bytes + packed + cache + shape.buffer_bytes(own, own_length, gpu=gpu)


def _torch_is_for_the_cpu() -> bool:
    try:
        return importlib.metadata.version("torch").endswith("+cpu")
    except importlib.metadata.PackageNotFoundError:
        return True


def _smaller(
    options: HFOptions, length: int, tokens: int, *, gpu: bool
) -> Iterator[dict[str, Any]]:
    """Changes with which it takes less memory, the mildest first."""
    yield from shorter_contexts(length, options.cache_tokens)
    if tokens > length and not options.cache_tokens:
        yield {"cache_tokens": length}
    if options.dtype in ("auto", "float32"):
        yield {"dtype": "bfloat16"}
    if options.prepack and not gpu:
        yield {"prepack": False}
    if options.draft_model:
        yield {"draft_model": None}
    if options.max_batch_size > 4:
        yield {"max_batch_size": 4}
    if gpu and options.device_map is None:
        yield {"device": "auto", "device_map": "auto"}
