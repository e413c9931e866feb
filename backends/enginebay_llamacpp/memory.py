"""Where the layers of a model go, and what it takes of memory beside its cache."""

import re
from dataclasses import dataclass
from math import inf

from enginebay import FreeMemory
from enginebay_llamacpp.cpu import has_amx
from enginebay_llamacpp.files import unavailable
from enginebay_llamacpp.options import MAX_SEQUENCES, LlamaCppOptions
from enginebay_llamacpp.shape import EXPERTS, ModelShape

_SHARE_OF_FREE_MEMORY = 0.5
_SHARE_OF_STATES = 0.25  # of that memory, for the recurrent states of all sequences
_TOKENS_A_SEQUENCE = 4096
_PADDING = 256
_UNTOLD_CONTEXT = 4096
_NO_LIMIT = 2**31
_BATCH_TOKENS, _BATCH_TOKENS_GPU = 512, 2048
_UBATCH_TOKENS = 512
DRAFT_TOKENS = 64
"""Drafted for all choices of a step together: so many more rows of logits."""

_REPACKED = (2, 10, 12, 20, 39)  # Q4_0, Q2_K, Q4_K, IQ4_NL, MXFP4: ggml's numbers
_LONGEST_TEXT = 8192  # by default: compute buffers grow with it

# Left on the GPU when layers are placed, for what no header tells.
_GPU_SPARE, _GPU_SPARE_SHARE = 256 << 20, 0.05


@dataclass(frozen=True, slots=True)
class Layout:
    """What lies where: `gpu_layers`, the output one of them, are on the GPU, the last ones first.

    `ram` and `gpu` are bytes of weights, `repacked` of those in RAM that are kept a second time in
    the order of the CPU's kernels; `ram_token` and `gpu_token` of a token in the KV cache,
    `ram_state` and `gpu_state` of a sequence's recurrent state.
    """

    gpu_layers: int
    ram: int
    gpu: int
    repacked: int
    ram_token: float
    gpu_token: float
    ram_state: int
    gpu_state: int

    @property
    def state_bytes(self) -> int:
        """Of a sequence's recurrent state, wherever its layers are; 0 for most models."""
        return self.ram_state + self.gpu_state

    def affordable_tokens(self, free: FreeMemory, slots: int) -> int:
        """Tokens of cache that may be taken of what is free once the weights are loaded.

        Beside them are the recurrent states of `slots` sequences.
        """
        ram = free.ram * _SHARE_OF_FREE_MEMORY - slots * self.ram_state
        tokens = ram / self.ram_token if self.ram_token else inf
        if free.gpu is not None and self.gpu_token:
            gpu = free.gpu * _SHARE_OF_FREE_MEMORY - slots * self.gpu_state
            tokens = min(tokens, gpu / self.gpu_token)
        return max(0, int(min(tokens, _NO_LIMIT)))

    def affordable_sequences(self, free: FreeMemory) -> int:
        """Sequences whose recurrent states may be taken of what is free."""
        share = _SHARE_OF_FREE_MEMORY * _SHARE_OF_STATES
        most = free.ram * share / self.ram_state if self.ram_state else inf
        if free.gpu is not None and self.gpu_state:
            most = min(most, free.gpu * share / self.gpu_state)
        return int(min(most, MAX_SEQUENCES))


@dataclass(frozen=True, slots=True)
class PassSizes:
    """Tokens of a forward pass, of what is computed at once in it, and rows of logits."""

    batch: int
    ubatch: int
    outputs: int

    @classmethod
    def of(cls, options: LlamaCppOptions, slots: int, *, gpu: bool) -> "PassSizes":
        """For a context with that many sequences."""
        batch = max(batch_tokens(options, gpu=gpu), slots)
        ubatch = min(options.ubatch_tokens or _UBATCH_TOKENS, batch)
        # Left to itself the library makes room for the logits of a whole batch.
        drafted = min(options.max_batch_size * options.guessed_tokens, DRAFT_TOKENS)
        outputs = min(slots + drafted, batch)
        return cls(batch, ubatch, outputs)


def batch_tokens(options: LlamaCppOptions, *, gpu: bool) -> int:
    """Tokens of one forward pass."""
    return options.batch_tokens or (_BATCH_TOKENS_GPU if gpu else _BATCH_TOKENS)


def placed(shape: ModelShape, options: LlamaCppOptions, free_gpu: int | None) -> Layout:
    """The layers on the GPU as the options say; `auto`: as many as fit into `free_gpu` bytes.

    They must fit beside the KV cache for the context that was asked for, and what is computed on
    the way. `free_gpu` is None where there is no GPU that llama.cpp can use.
    """
    most = shape.layers + 1
    if free_gpu is None:
        return layout(shape, options, 0)
    if isinstance(options.gpu_layers, int):
        return layout(shape, options, min(options.gpu_layers, most))
    if options.gpu_layers == "all":
        return layout(shape, options, most)
    tokens = reserved_tokens(shape, options)
    left = free_gpu - max(_GPU_SPARE, int(free_gpu * _GPU_SPARE_SHARE))
    slots = min(2 * options.max_batch_size, MAX_SEQUENCES)
    left -= compute_bytes(shape, PassSizes.of(options, slots, gpu=True), tokens, options)
    for count in range(most, 0, -1):
        tried = layout(shape, options, count)
        states = options.max_batch_size * tried.gpu_state
        if tried.gpu + tokens * tried.gpu_token + states <= left:
            return tried
    return layout(shape, options, 0)


def reserved_tokens(shape: ModelShape, options: LlamaCppOptions) -> int:
    """Tokens of cache that layers on the GPU must leave room for."""
    asked = options.cache_tokens or options.context_length
    return padded(asked or min(context_length(shape, options), _TOKENS_A_SEQUENCE))


def layout(shape: ModelShape, options: LlamaCppOptions, gpu_layers: int) -> Layout:
    """Where everything lies with so many layers on the GPU."""
    first = shape.layers + 1 - gpu_layers
    overrides = [(re.compile(pattern), target) for pattern, target in tensor_overrides(options)]
    ram = gpu = repacked = 0
    repack = not has_amx() if options.repack is None else options.repack
    for tensor in shape.tensors:
        target = next((to for pattern, to in overrides if pattern.search(tensor.name)), None)
        on_gpu = shape.layer_of(tensor) >= first if target is None else "CPU" not in target
        if on_gpu:
            gpu += tensor.bytes
        else:
            ram += tensor.bytes
            if (
                repack
                and tensor.format in _REPACKED
                and (shape.tied or tensor.name != "token_embd.weight")
            ):
                repacked += tensor.bytes
    if gpu_layers and shape.tied:
        gpu += shape.embedding_bytes  # the output is a copy of the embeddings, which stay in RAM
    layers = shape.cache_bytes(options.cache_type_k, options.cache_type_v)
    states = shape.state_bytes()
    begin = max(0, first) if options.offload_kv else len(layers)
    return Layout(
        gpu_layers=gpu_layers,
        ram=ram,
        gpu=gpu,
        repacked=repacked,
        ram_token=sum(layers[:begin]),
        gpu_token=sum(layers[begin:]),
        ram_state=sum(states[:begin]),
        gpu_state=sum(states[begin:]),
    )


def tensor_overrides(options: LlamaCppOptions) -> list[tuple[str, str]]:
    """Regular expressions of tensor names and the buffer types that they go to; the first wins."""
    found = list(options.tensor_overrides)
    if options.cpu_moe_layers == "all":
        found.append((EXPERTS, "CPU"))
    elif options.cpu_moe_layers:
        found += [(rf"blk\.{layer}{EXPERTS}", "CPU") for layer in range(options.cpu_moe_layers)]
    return found


def compute_bytes(
    shape: ModelShape, passes: PassSizes, tokens: int, options: LlamaCppOptions
) -> int:
    """What a pass takes on the way, with a KV cache of so many tokens.

    As llama.cpp 0.3.36 lays it out for a Llama: the mask of the cache, four states of a token, and
    three of its feed-forward part; scores of all heads where attention is not computed in one go;
    or the logits, if they are more.
    """
    rows = passes.ubatch
    plain = options.flash_attention == "off"
    mask = rows * tokens * (4 if plain else 2)
    scores = rows * tokens * shape.heads if plain else 0
    layer = 4 * rows * 4 * shape.width + 4 * max(3 * rows * shape.feed_forward, scores)
    return max(mask + layer, 4 * passes.outputs * shape.vocab_size)


def output_bytes(shape: ModelShape, passes: PassSizes) -> int:
    """Of the rows of logits that a pass gives."""
    return 4 * passes.outputs * shape.vocab_size


def context_length(shape: ModelShape, options: LlamaCppOptions) -> int:
    """Tokens of one sequence: as the options say, else as the model was trained for."""
    trained, wanted = shape.trained_context, options.context_length
    if wanted and trained and wanted > trained and not options.extends_context:
        raise unavailable(
            shape.path,
            f"context_length {wanted} exceeds the {trained} tokens the model was trained for; "
            "lower it, or extend the model with rope_scaling or rope_freq_scale",
        )
    return wanted or trained or _UNTOLD_CONTEXT


@dataclass(frozen=True, slots=True)
class PoolingSizes:
    """Tokens of the longest text, of a pass, and of the cache."""

    longest: int
    together: int
    tokens: int

    @classmethod
    def of(cls, shape: ModelShape, options: LlamaCppOptions, *, gpu: bool) -> "PoolingSizes":
        """For a model that embeds or ranks `max_batch_size` texts at once."""
        longest = context_length(shape, options)
        if options.context_length is None:
            longest = min(longest, _LONGEST_TEXT)
        tokens = batch_tokens(options, gpu=gpu)
        if not shape.causal:
            tokens = max(tokens, longest)
        # llama.cpp tries the largest pass with as many tokens for each text, and ends the process
        # when it has to round.
        together = -(-tokens // options.max_batch_size) * options.max_batch_size
        return cls(longest, together, padded(max(longest, together)))


_SHARED_WITH_DRAFT = {
    "threads",
    "threads_batch",
    "gpu_layers",
    "flash_attention",
    "mmap",
    "repack",
    "batch_tokens",
}


def draft_options(options: LlamaCppOptions) -> LlamaCppOptions:
    """Those of the draft model, given those of the large one."""
    return LlamaCppOptions(**options.model_dump(include=_SHARED_WITH_DRAFT))


def padded(tokens: int) -> int:
    """The next size that llama.cpp makes caches of."""
    return -(-tokens // _PADDING) * _PADDING
