"""A llama.cpp context: the KV cache of a model, and forward passes over it."""

import ctypes
import weakref
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from enginebay_llamacpp.adapters import LoadedLora
from enginebay_llamacpp.batch import Batch, RowBatch
from enginebay_llamacpp.cache import CacheSize
from enginebay_llamacpp.cpu import physical_cores
from enginebay_llamacpp.files import unavailable
from enginebay_llamacpp.library import (
    address,
    get_logits,
    llama,
    logged_errors,
    memory_clear,
    memory_seq_cp,
    memory_seq_rm,
)
from enginebay_llamacpp.memory import PassSizes
from enginebay_llamacpp.model import Model
from enginebay_llamacpp.options import MAX_SEQUENCES, LlamaCppOptions
from enginebay_llamacpp.states import SHAPE_BYTES, for_streams, write_shape

Rows = NDArray[np.float32]

_NO_ROOM = 1
_NO_MEMORY = -2
_FLASH_ATTENTION = {
    "auto": llama.LLAMA_FLASH_ATTN_TYPE_AUTO,
    "on": llama.LLAMA_FLASH_ATTN_TYPE_ENABLED,
    "off": llama.LLAMA_FLASH_ATTN_TYPE_DISABLED,
}
_ROPE_SCALING = {
    "none": llama.LLAMA_ROPE_SCALING_TYPE_NONE,
    "linear": llama.LLAMA_ROPE_SCALING_TYPE_LINEAR,
    "yarn": llama.LLAMA_ROPE_SCALING_TYPE_YARN,
    "longrope": llama.LLAMA_ROPE_SCALING_TYPE_LONGROPE,
}
POSITION_OPTIONS = (
    "rope_freq_base",
    "rope_freq_scale",
    "yarn_ext_factor",
    "yarn_attn_factor",
    "yarn_beta_fast",
    "yarn_beta_slow",
    "yarn_orig_ctx",
)
"""Options that say where tokens are; llama.cpp's context has parameters of the same names."""


class NoRoomError(Exception):
    """The KV cache has no free cells for these tokens; it has not changed."""


class Context:
    """Sequences 0 to `slots` - 1, on the thread that made it."""

    def __init__(
        self,
        model: Model,
        options: LlamaCppOptions,
        size: CacheSize,
        *,
        gpu: bool,
        at_once: int = 0,
    ) -> None:
        """`at_once`: how many rows `run_rows` must be able to compute at once, at least."""
        self.size = size
        self._slides = llama.llama_model_n_swa(model.pointer) > 0
        self._keeps_windows = (
            self._slides and size.unified and options.swa_full and 2 * size.slots <= MAX_SEQUENCES
        )
        params = _params(options, size, gpu=gpu)
        if self._keeps_windows:
            params.n_seq_max *= 2
            params.n_outputs_max = max(params.n_outputs_max, params.n_seq_max)
        self.batch_tokens: int = params.n_batch
        params.n_batch = max(params.n_batch, at_once)
        params.n_ubatch = max(params.n_ubatch, at_once)
        pointer = self._pointer = new_context(model, params)
        self._address = address(pointer)
        self._model = model
        self._free = weakref.finalize(self, llama.llama_free, pointer)
        self._free.atexit = False
        memory = llama.llama_get_memory(pointer)
        self._memory = address(memory) if memory else None
        self._vocab_size = model.vocab_size
        self._max_tokens: int = llama.llama_n_batch(pointer)
        self._max_outputs: int = params.n_outputs_max
        self._at_once: int = llama.llama_n_ubatch(pointer)
        self._batch = Batch(self._max_tokens)
        self._row_batch = RowBatch(self._max_tokens)
        self._views: dict[tuple[int, int], Rows] = {}
        self.tokens: int = llama.llama_n_ctx(pointer)
        self.tokens_per_sequence: int = llama.llama_n_ctx_seq(pointer)

    @property
    def has_memory(self) -> bool:
        """Whether it has a KV cache at all; embedding models do not."""
        return self._memory is not None

    @property
    def at_once(self) -> int:
        """Rows that can see each other at most."""
        return self._at_once

    def run(
        self,
        token_ids: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        outputs: Sequence[bool],
    ) -> Rows:
        """Logits `[outputs, vocabulary]` of the tokens that are to give some, in their order.

        The rows may be written to, and are gone with the next run. `NoRoomError` if the cache is
        full: the tokens before those that did not fit may have been run.
        """
        if bad := [token for token in token_ids if not 0 <= token < self._vocab_size]:
            raise ValueError(f"token id {bad[0]} is not in the vocabulary")
        pieces = self._pieces(outputs)
        done = []
        for start, end in pieces:
            self._batch.fill(
                token_ids[start:end], positions[start:end], slots[start:end], outputs[start:end]
            )
            self._decode(self._batch)
            rows = self._rows(sum(outputs[start:end]))
            done.append(rows.copy() if len(pieces) > 1 else rows)
        return done[0] if len(done) == 1 else np.concatenate(done)

    def run_rows(
        self,
        embeddings: Rows,
        positions: NDArray[np.int32],
        slots: Sequence[int],
        outputs: Sequence[bool],
        *,
        causal: bool,
    ) -> Rows:
        """As `run`, of rows `[tokens, size]` that stand in the place of tokens' embeddings.

        `positions`: `[sections, tokens]`. Not `causal`: all of them see each other; then they must
        be of one slot, and few enough to be computed at once.
        """
        if not causal and len(embeddings) > self._at_once:
            raise ValueError(f"{len(embeddings)} rows, and {self._at_once} are computed at once")
        done = []
        if not causal:
            llama.llama_set_causal_attn(self._pointer, False)
        try:
            for start, end in self._pieces(outputs):
                self._row_batch.fill(
                    embeddings[start:end],
                    positions[:, start:end],
                    slots[start:end],
                    outputs[start:end],
                )
                self._decode(self._row_batch)
                done.append(self._rows(sum(outputs[start:end])).copy())
        finally:
            if not causal:
                llama.llama_set_causal_attn(self._pointer, True)
        return np.concatenate(done)

    def can_cut(self) -> bool:
        """Test on an empty cache, which is left empty: recurrent models remove all or nothing."""
        self.run([0, 0], [0, 1], [0, 0], [False, True])
        cuts = self.remove(0, 1)
        self.clear()
        return cuts

    def clear(self) -> None:
        """Forget everything."""
        memory_clear(self._memory, True)

    def remove(self, slot: int, start: int = 0) -> bool:
        """Forget the positions from `start` on; False where the model cannot, and has not."""
        if self._keeps_windows:
            self._keep_windows()
            memory_seq_rm(self._memory, self.size.slots + slot, start, -1)
        return bool(memory_seq_rm(self._memory, slot, start, -1))

    def copy(self, source: int, target: int, tokens: int | None = None) -> None:
        """Let `target` hold the first `tokens` of `source`, or all; a part in unified caches only.

        A part of a sequence that has a cache of its own would end the process.
        """
        if self.size.unified or self._slides:
            start, end = (0, tokens) if tokens is not None else (-1, -1)
            memory_seq_cp(self._memory, source, target, start, end)
        else:
            # llama.cpp copies the cells of separate caches only in its next pass, and a state that
            # is saved before would not have them.
            self.restore(target, self.save(source))

    def save(self, slot: int) -> memoryview:
        """A copy of what a slot holds; of sliding-window layers only what is in the window."""
        size = llama.llama_state_seq_get_size(self._pointer, slot)
        state = np.empty(size + SHAPE_BYTES, np.uint8)
        written = llama.llama_state_seq_get_data(self._pointer, _bytes(state), size, slot)
        if not written:
            raise RuntimeError("llama.cpp cannot copy the state of a sequence")
        state = state[: written + SHAPE_BYTES]
        write_shape(state, self._streams, slot)
        return state.data

    def restore(self, slot: int, state: memoryview) -> None:
        """Fill a slot with such a copy of a context like this; `RuntimeError` if it is not."""
        try:
            data = for_streams(np.frombuffer(state, np.uint8), self._streams)
        except ValueError as error:
            raise RuntimeError(f"a saved state cannot be used: {error}") from error
        with logged_errors() as errors:
            read = llama.llama_state_seq_set_data(self._pointer, _bytes(data), len(data), slot)
        if read != len(data):
            raise RuntimeError(f"llama.cpp does not take a saved state: {'; '.join(errors)}")

    def take(self, other: "Context", held: Sequence[int]) -> None:
        """Copy all that another context of the model holds, `held` tokens in each slot."""
        if self._streams == other._streams:
            size = llama.llama_state_get_size(other._pointer)
            state = np.empty(size, np.uint8)
            written = llama.llama_state_get_data(other._pointer, _bytes(state), size)
            with logged_errors() as errors:
                read = llama.llama_state_set_data(self._pointer, _bytes(state), written)
            if not written or read != written:
                raise RuntimeError(f"llama.cpp cannot copy its state: {'; '.join(errors)}")
            if self._keeps_windows:
                self._keep_windows()
        elif self._slides:
            raise RuntimeError("tokens outside of a sliding window cannot be copied")
        else:
            for slot, tokens in enumerate(held):
                if tokens:
                    self.restore(slot, other.save(slot))

    def _keep_windows(self) -> None:
        """Give every cell a second sequence.

        llama.cpp writes new tokens over cells of one sequence that have left its sliding window,
        where it looks for free cells; it does so after some were freed. They would be missed when
        the sequence is truncated.
        """
        for slot in range(self.size.slots):
            memory_seq_cp(self._memory, slot, self.size.slots + slot, -1, -1)

    @property
    def _streams(self) -> int:
        return 1 if self.size.unified else self.size.slots

    def set_loras(self, loras: Sequence[LoadedLora]) -> None:
        """Add the weights of these, or of none, to the model's from now on."""
        count = len(loras)
        pointers = (llama.llama_adapter_lora_p_ctypes * count)(*(lora.pointer for lora in loras))
        scales = (ctypes.c_float * count)(*(lora.scale for lora in loras))
        code = llama.llama_set_adapters_lora(self._pointer, pointers, count, scales)
        if code:
            raise RuntimeError(f"llama_set_adapters_lora returned {code}")

    def close(self) -> None:
        """Free the cache; nothing else may be called any more."""
        self._views.clear()
        self._free()

    def _pieces(self, outputs: Sequence[bool]) -> list[tuple[int, int]]:
        """Split what is too much for one call; the library would end the process."""
        count = len(outputs)
        if count <= self._max_tokens and sum(outputs) <= self._max_outputs:
            return [(0, count)]
        before = [0, *accumulate(outputs)]
        pieces = []
        start = 0
        while start < count:
            end = min(start + self._max_tokens, count)
            while before[end] - before[start] > self._max_outputs:
                end -= 1
            pieces.append((start, end))
            start = end
        return pieces

    def _decode(self, batch: Batch | RowBatch) -> None:
        with logged_errors() as errors:
            code = llama.llama_decode(self._pointer, batch.struct)
            if code == 0:
                llama.llama_synchronize(self._pointer)
        if code == _NO_ROOM:
            raise NoRoomError
        if code == _NO_MEMORY:
            raise MemoryError(f"llama.cpp cannot allocate it: {'; '.join(errors)}")
        if code:
            raise RuntimeError(f"llama_decode returned {code}: {'; '.join(errors)}")

    def _rows(self, count: int) -> Rows:
        if not count:
            return np.empty((0, self._vocab_size), np.float32)
        start = get_logits(self._address)
        rows = self._views.get((start, count))
        if rows is None:
            if len(self._views) > 256:
                self._views.clear()
            buffer: Any = (ctypes.c_float * (count * self._vocab_size)).from_address(start)
            rows = np.frombuffer(buffer, np.float32).reshape(count, self._vocab_size)
            self._views[start, count] = rows
        return rows


def _bytes(data: NDArray[np.uint8]) -> Any:
    return data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


def new_context(model: Model, params: Any) -> Any:
    """A pointer to a new context, to be freed. `BackendUnavailableError` if there is none."""
    with logged_errors() as errors:
        pointer = llama.llama_init_from_model(model.pointer, params)
    if not pointer:
        raise unavailable(
            model.path,
            f"llama.cpp cannot create a context of {params.n_ctx} tokens: "
            f"{'; '.join(errors) or 'no reason given'}. If memory is short, lower "
            "context_length, cache_tokens or max_batch_size, or set cache_type_k and "
            "cache_type_v to q8_0",
        )
    return pointer


def _params(options: LlamaCppOptions, size: CacheSize, *, gpu: bool) -> Any:
    params = context_params(options)
    params.n_ctx = size.tokens
    params.n_seq_max = size.slots
    params.kv_unified = size.unified
    passes = PassSizes.of(options, size.slots, gpu=gpu)
    params.n_batch, params.n_ubatch = passes.batch, passes.ubatch
    params.n_outputs_max = passes.outputs
    return params


def context_params(options: LlamaCppOptions) -> Any:
    """Context params from the options; sizes are the caller's."""
    params = llama.llama_context_default_params()
    params.n_threads = options.threads or physical_cores()
    params.n_threads_batch = options.threads_batch or params.n_threads
    params.flash_attn_type = _FLASH_ATTENTION[options.flash_attention]
    params.type_k = getattr(llama, f"GGML_TYPE_{options.cache_type_k.upper()}", _BF16)
    params.type_v = getattr(llama, f"GGML_TYPE_{options.cache_type_v.upper()}", _BF16)
    params.swa_full = options.swa_full
    params.offload_kqv = options.offload_kv
    params.no_perf = True
    if options.rope_scaling:
        params.rope_scaling_type = _ROPE_SCALING[options.rope_scaling]
    for name in POSITION_OPTIONS:
        if (value := getattr(options, name)) is not None:
            setattr(params, name, value)
    return params


_BF16 = 30  # GGML_TYPE_BF16, which the bindings lack
