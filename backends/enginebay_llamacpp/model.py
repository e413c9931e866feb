"""A model in memory: loading it, and its metadata."""

import ctypes
import logging
import weakref
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from enginebay import BackendUnavailableError, FreeMemory, MemoryUse, ReportProgress
from enginebay_llamacpp.cpu import has_amx
from enginebay_llamacpp.devices import buffer_types, free_memory
from enginebay_llamacpp.files import parts_of, size, unavailable
from enginebay_llamacpp.library import LoadProgress, address, llama, logged_errors, read_text
from enginebay_llamacpp.memory import placed, tensor_overrides
from enginebay_llamacpp.options import LlamaCppOptions
from enginebay_llamacpp.shape import ModelShape

logger = logging.getLogger(__name__)

_SPLIT_MODES = {
    "none": llama.LLAMA_SPLIT_MODE_NONE,
    "layer": llama.LLAMA_SPLIT_MODE_LAYER,
    "row": llama.LLAMA_SPLIT_MODE_ROW,
    "tensor": llama.LLAMA_SPLIT_MODE_TENSOR,
}
_LOAD_MODES = {
    (False, False): llama.LLAMA_LOAD_MODE_NONE,
    (True, False): llama.LLAMA_LOAD_MODE_AUTO,
    (False, True): llama.LLAMA_LOAD_MODE_MLOCK,
    (True, True): llama.LLAMA_LOAD_MODE_MMAP_MLOCK,
}
_NOT_QUANTIZED = {
    llama.LLAMA_FTYPE_ALL_F32,
    llama.LLAMA_FTYPE_MOSTLY_F16,
    llama.LLAMA_FTYPE_MOSTLY_BF16,
}


class Model:
    """Weights and vocabulary. They are freed when nothing refers to this any more.

    So a thread that still tokenizes keeps the vocabulary that it reads.
    """

    def __init__(
        self,
        path: Path,
        options: LlamaCppOptions,
        report_progress: ReportProgress,
        *,
        gpu: bool,
    ) -> None:
        """`gpu`: whether there may be layers on a GPU; how many is decided here."""
        self.path = path
        self.shape = ModelShape.of(path, options.override_kv)
        self.layout = placed(self.shape, options, free_memory(gpu=gpu).gpu)
        loading = LoadProgress(report_progress, "loading weights", size(path), 0.05, 0.9)
        params = _params(options)
        params.n_gpu_layers = self.layout.gpu_layers
        overrides = _buffer_overrides(path, options)
        if overrides is not None:
            params.tensor_buft_overrides = ctypes.cast(overrides, ctypes.c_void_p)
        params.use_extra_bufts = _may_repack(path) if options.repack is None else options.repack
        params.progress_callback = callback = llama.llama_progress_callback(loading)
        with logged_errors() as errors:
            pointer = _loaded(path, params)
        del callback
        if loading.error:
            raise loading.error
        if not pointer:
            raise _explained(path, errors)
        self.pointer: Any = pointer
        # At exit the engine's thread may still be computing, and the system frees all the same.
        weakref.finalize(self, llama.llama_model_free, pointer).atexit = False
        self.vocab: Any = llama.llama_model_get_vocab(pointer)
        self.vocab_address = address(self.vocab)
        self.vocab_size: int = llama.llama_vocab_n_tokens(self.vocab)

    def metadata(self, key: str) -> str | None:
        """A value of the file's metadata as text, None if it is not there."""
        return read_text(partial(llama.llama_model_meta_val_str, self.pointer, key.encode()))

    def named_metadata(self, prefix: str) -> dict[str, str]:
        """The values of all keys that begin so, by what follows in the key."""
        found = {}
        for index in range(llama.llama_model_meta_count(self.pointer)):
            key = read_text(partial(llama.llama_model_meta_key_by_index, self.pointer, index)) or ""
            name = key.removeprefix(prefix)
            if name != key and (value := self.metadata(key)) is not None:
                found[name] = value
        return found

    @property
    def pooling(self) -> str | None:
        """The pooling type set in the file; None if it has none."""
        return _POOLING.get(self._own_metadata("pooling_type"))

    def _own_metadata(self, key: str) -> str | None:
        return self.metadata(f"{self.metadata('general.architecture')}.{key}")

    def free_memory(self, options: LlamaCppOptions) -> FreeMemory:
        """What is free now, beside the weights."""
        free = free_memory(gpu=bool(self.layout.gpu_layers))
        if options.mmap:  # pages of a mapped file count as free, and are needed all the same
            free += MemoryUse(ram=-self.layout.ram)
        return free

    def check_supported(self) -> None:
        """Raise a `BackendUnavailableError` for models that no engine here can run."""
        if llama.llama_vocab_type(self.vocab) == llama.LLAMA_VOCAB_TYPE_NONE:
            raise unavailable(self.path, "the file has no vocabulary; convert the model again")
        if llama.llama_model_has_encoder(self.pointer):
            raise self._unfit("an encoder")
        if llama.llama_model_is_diffusion(self.pointer):
            raise self._unfit("a diffusion model")

    def check_reranks(self) -> None:
        """Raise a `BackendUnavailableError` unless it has a head that scores relevance.

        Without one, llama.cpp returns a number of the hidden state instead of a score.
        """
        heads = ("cls.output.weight", "cls.weight")
        if not any(tensor.name in heads for tensor in self.shape.tensors):
            raise unavailable(
                self.path,
                "it has no classification head, so it cannot rerank; choose another conversion of "
                "the model, or set pooling to mean, cls or last to use it for embeddings",
            )
        outputs = llama.llama_model_n_cls_out(self.pointer)
        first: bytes | None = llama.llama_model_cls_label(self.pointer, 0)
        if outputs != 1 and not (outputs == 2 and first == b"yes"):
            raise unavailable(
                self.path,
                f"it is a classifier with {outputs} classes, none of which is a relevance score; "
                "choose a reranker, whose head has one output, or yes and no",
            )

    def check_generates_text(self) -> None:
        """Raise a `BackendUnavailableError` for models that do not continue a text."""
        self.check_supported()
        if not self.shape.causal:
            raise self._unfit("an embedding model")

    def _unfit(self, problem: str) -> BackendUnavailableError:
        kind = self.metadata("general.architecture")
        return unavailable(
            self.path, f"{kind} is {problem}; choose a causal language model for text generation"
        )


_POOLING: Mapping[str | None, str] = {"1": "mean", "2": "cls", "3": "last", "4": "rank"}


def _params(options: LlamaCppOptions) -> Any:
    params = llama.llama_model_default_params()
    params.split_mode = _SPLIT_MODES[options.split_mode]
    params.main_gpu = options.main_gpu
    if options.tensor_split:
        shares = (ctypes.c_float * llama.llama_max_devices())(*options.tensor_split)
        params.tensor_split = shares
    params.load_mode = _LOAD_MODES[options.mmap, options.mlock]
    params.check_tensors = options.check_tensors
    if options.override_kv:
        params.kv_overrides = _overrides(options.override_kv)
    return params


def _loaded(path: Path, params: Any) -> Any:
    """The model in all parts of a file, whatever they are called; None if that failed."""
    parts = [str(part).encode() for part in parts_of(path)]
    return llama.llama_model_load_from_splits(
        (ctypes.c_char_p * len(parts))(*parts), len(parts), params
    )


def _may_repack(path: Path) -> bool:
    """Not quantized weights on a processor with AMX.

    GCC before 12.4 and 13.3 leaves out most of llama.cpp's tile configuration, and the first
    product of matrices is an illegal instruction (https://github.com/ggml-org/llama.cpp/pull/26954).
    """
    if not has_amx():
        return True
    params = llama.llama_model_default_params()
    params.no_alloc = True
    params.load_mode = llama.LLAMA_LOAD_MODE_NONE
    pointer = _loaded(path, params)
    if not pointer:
        return True  # loading it will say why
    safe = llama.llama_model_ftype(pointer) & ~llama.LLAMA_FTYPE_GUESSED in _NOT_QUANTIZED
    llama.llama_model_free(pointer)
    if not safe:
        logger.info("%s: weights are not repacked because AMX may crash; see `repack`", path)
    return safe


def _overrides(values: Mapping[str, bool | int | float | str]) -> Any:
    """A C array that ends with an empty key."""
    array = (llama.llama_model_kv_override * (len(values) + 1))()
    for entry, (key, value) in zip(array, values.items(), strict=False):
        entry.key = key.encode()
        match value:
            case bool():
                entry.tag, entry.value.val_bool = llama.LLAMA_KV_OVERRIDE_TYPE_BOOL, value
            case int():
                entry.tag, entry.value.val_i64 = llama.LLAMA_KV_OVERRIDE_TYPE_INT, value
            case float():
                entry.tag, entry.value.val_f64 = llama.LLAMA_KV_OVERRIDE_TYPE_FLOAT, value
            case str():
                entry.tag = llama.LLAMA_KV_OVERRIDE_TYPE_STR
                entry.value.val_str = value.encode()
    return array


class _BufferOverride(ctypes.Structure):
    """`llama_model_tensor_buft_override`, which the bindings lack."""

    _fields_ = [("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p)]


def _buffer_overrides(path: Path, options: LlamaCppOptions) -> Any:
    """A C array that ends with an empty entry; None without any."""
    wanted = tensor_overrides(options)
    if not wanted:
        return None
    known = buffer_types()
    array = (_BufferOverride * (len(wanted) + 1))()
    for entry, (pattern, target) in zip(array, wanted, strict=False):
        if target not in known:
            raise unavailable(
                path,
                f"override_tensor names the buffer type {target!r}, and this llama-cpp-python has "
                f"{', '.join(known)}",
            )
        entry.pattern, entry.buffer_type = pattern.encode(), known[target]
    return array


def _explained(path: Path, errors: list[str]) -> BackendUnavailableError:
    reason = "; ".join(errors) or "no reason given"
    if "CLIP cannot be used" in reason:
        advice = "it is the mmproj file of a model; name the model's own file as `path`"
    elif "unknown model architecture" in reason:
        advice = "a newer llama-cpp-python may know it: pip install --upgrade llama-cpp-python"
    elif "corrupted or incomplete" in reason or "failed to read" in reason:
        advice = "the file is corrupt or incomplete; download it again"
    elif "alloc" in reason:
        advice = (
            "there is not enough memory; lower gpu_layers, set cpu_moe_layers, or use a smaller "
            "quantization"
        )
    else:
        advice = "the file may be damaged, or need another version of llama-cpp-python"
    return unavailable(path, f"llama.cpp cannot load it: {advice} ({reason})")
