"""A model in memory: loading it, and its metadata."""

import ctypes
import logging
import weakref
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from backends.llamacpp.cpu import has_amx
from backends.llamacpp.files import lists_tensor, unavailable
from backends.llamacpp.library import LoadProgress, address, llama, logged_errors, read_text
from backends.llamacpp.options import LlamaCppOptions
from enginebay import BackendUnavailableError, ReportProgress

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
_ALL_LAYERS = -1
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
        self, path: Path, options: LlamaCppOptions, report_progress: ReportProgress
    ) -> None:
        self.path = path
        loading = LoadProgress(report_progress, "loading weights", 0.05, 0.9)
        params = _params(options)
        params.use_extra_bufts = _may_repack(path) if options.repack is None else options.repack
        params.progress_callback = callback = llama.llama_progress_callback(loading)
        with logged_errors() as errors:
            pointer = llama.llama_model_load_from_file(str(path).encode(), params)
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
        self.bytes: int = llama.llama_model_size(pointer)
        self.trained_context: int = llama.llama_model_n_ctx_train(pointer)

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

    @property
    def causal(self) -> bool:
        """Whether tokens see only those before them."""
        kind = self.metadata("general.architecture")
        return kind not in _EMBEDDING_MODELS and self._own_metadata("attention.causal") != "false"

    def _own_metadata(self, key: str) -> str | None:
        return self.metadata(f"{self.metadata('general.architecture')}.{key}")

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
        if not lists_tensor(self.path, ("cls.output.weight", "cls.weight")):
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
        if not self.causal:
            raise self._unfit("an embedding model")

    def _unfit(self, problem: str) -> BackendUnavailableError:
        kind = self.metadata("general.architecture")
        return unavailable(
            self.path, f"{kind} is {problem}; choose a causal language model for text generation"
        )

    def cache_bytes_per_token(self, type_k: str, type_v: str) -> float:
        """Bytes of a token in the KV cache, an estimate from the metadata.

        Too high for models whose layers differ, 0 for recurrent ones.
        """
        kind = self.metadata("general.architecture")
        heads = llama.llama_model_n_head(self.pointer)
        if not heads:
            return 0.0
        head_size = llama.llama_model_n_embd(self.pointer) // heads
        key = int(self.metadata(f"{kind}.attention.key_length") or head_size)
        value = int(self.metadata(f"{kind}.attention.value_length") or head_size)
        layers: int = llama.llama_model_n_layer(self.pointer)
        rows: int = layers * llama.llama_model_n_head_kv(self.pointer)
        return rows * (key * _BYTES[type_k] + value * _BYTES[type_v])


_EMBEDDING_MODELS = {
    "bert",
    "eurobert",
    "gemma-embedding",
    "jina-bert-v2",
    "jina-bert-v3",
    "modern-bert",
    "neo-bert",
    "nomic-bert",
    "nomic-bert-moe",
}
_POOLING: Mapping[str | None, str] = {"1": "mean", "2": "cls", "3": "last", "4": "rank"}
_BYTES = {
    "f32": 4.0,
    "f16": 2.0,
    "bf16": 2.0,
    "q8_0": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
    "iq4_nl": 18 / 32,
}


def _params(options: LlamaCppOptions) -> Any:
    params = llama.llama_model_default_params()
    if isinstance(options.gpu_layers, int):
        params.n_gpu_layers = options.gpu_layers
    else:
        params.n_gpu_layers = _ALL_LAYERS
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
    pointer = llama.llama_model_load_from_file(str(path).encode(), params)
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


def _explained(path: Path, errors: list[str]) -> BackendUnavailableError:
    reason = "; ".join(errors) or "no reason given"
    if "CLIP cannot be used" in reason:
        advice = "it is the mmproj file of a model; name the model's own file as `path`"
    elif "unknown model architecture" in reason:
        advice = "a newer llama-cpp-python may know it: pip install --upgrade llama-cpp-python"
    elif "corrupted or incomplete" in reason or "failed to read" in reason:
        advice = "the file is corrupt or incomplete; download it again"
    elif "alloc" in reason:
        advice = "there is not enough memory; use a smaller quantization, or fewer gpu_layers"
    else:
        advice = "the file may be damaged, or need another version of llama-cpp-python"
    return unavailable(path, f"llama.cpp cannot load it: {advice} ({reason})")
