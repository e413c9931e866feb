"""From a GGUF file to an engine, or to an error that says what to do."""

import logging
from pathlib import Path

from backends.batching.drafts import Drafter, PromptLookup
from backends.batching.scheduler import BatchLimits
from backends.llamacpp.adapters import load_adapters
from backends.llamacpp.context import Context
from backends.llamacpp.draft import load_drafter
from backends.llamacpp.engine import LlamaCppEngine
from backends.llamacpp.files import find_gguf, unavailable
from backends.llamacpp.info import model_info
from backends.llamacpp.library import llama
from backends.llamacpp.memory import CacheSize, cache_size
from backends.llamacpp.model import Model
from backends.llamacpp.options import LlamaCppOptions
from backends.llamacpp.runner import LlamaRunner
from backends.llamacpp.tokenizer import Tokenizer
from enginebay import BackendSettings

logger = logging.getLogger(__name__)

_PREFILL_TOKENS, _PREFILL_TOKENS_GPU = 64, 512
_NUMA = {
    "disabled": llama.GGML_NUMA_STRATEGY_DISABLED,
    "distribute": llama.GGML_NUMA_STRATEGY_DISTRIBUTE,
    "isolate": llama.GGML_NUMA_STRATEGY_ISOLATE,
    "numactl": llama.GGML_NUMA_STRATEGY_NUMACTL,
}


def load_engine(settings: BackendSettings) -> LlamaCppEngine:
    """The engine of one model, on the thread that will run it.

    Everything that can be wrong with a model is a `BackendUnavailableError`.
    """
    options = LlamaCppOptions.of(settings.options)
    path = find_gguf(Path(settings.path))
    gpu = bool(options.gpu_layers) and llama.llama_supports_gpu_offload()
    _check_gpu(path, options, gpu=gpu)
    if options.numa != "disabled":
        llama.llama_numa_init(_NUMA[options.numa])
    settings.report_progress("loading weights", 0.05)
    model = Model(path, options, settings.report_progress)
    model.check_generates_text()
    settings.report_progress("making the KV cache", 0.9)
    tokenizer = Tokenizer(model)
    adapters = load_adapters(model, options.adapters, Path(settings.base))
    size = cache_size(model, options, gpu=gpu)
    context = Context(model, options, size, gpu=gpu)
    if not context.has_memory:
        raise unavailable(path, "it is an embedding model; choose one made for text generation")
    settings.report_progress("checking the model", 0.95)
    keeps_all = options.swa_full or not llama.llama_model_n_swa(model.pointer)
    runner = LlamaRunner(model, context, tokenizer, size, adapters, keeps_all=keeps_all)
    length = min(size.context_length, context.tokens_per_sequence)
    _log(settings.name, options, size, context, length)
    engine = LlamaCppEngine(
        runner,
        tokenizer,
        model_info(model, tokenizer, length, tuple(adapters)),
        BatchLimits(
            max_batch_size=options.max_batch_size,
            max_waiting=options.max_waiting,
            batch_tokens=context.batch_tokens,
            prefill_tokens=options.prefill_tokens
            or (_PREFILL_TOKENS_GPU if gpu else _PREFILL_TOKENS),
        ),
        _drafter(settings, path, options, tokenizer, runner, length, gpu=gpu),
    )
    settings.report_progress("ready", 1.0)
    return engine


def _drafter(
    settings: BackendSettings,
    path: Path,
    options: LlamaCppOptions,
    tokenizer: Tokenizer,
    runner: LlamaRunner,
    context_length: int,
    *,
    gpu: bool,
) -> Drafter | None:
    if not options.guessed_tokens:
        return None
    if not runner.memory.cuts:
        logger.warning("%s: nothing is guessed, as this model cannot take tokens back", path)
        return None
    if options.draft_model is None:
        return PromptLookup(options.prompt_lookup)
    draft = Path(settings.base) / Path(options.draft_model).expanduser()
    return load_drafter(draft, path, options, tokenizer, context_length, gpu=gpu)


def _check_gpu(path: Path, options: LlamaCppOptions, *, gpu: bool) -> None:
    if options.gpu_layers not in ("auto", 0) and not gpu:
        raise unavailable(
            path,
            f"gpu_layers is {options.gpu_layers}, and this llama-cpp-python was built for the CPU "
            "only; build it for your GPU (docs/llamacpp.md) or set gpu_layers: auto",
        )


def _log(
    name: str, options: LlamaCppOptions, size: CacheSize, context: Context, length: int
) -> None:
    logger.info(
        "%s: KV cache of %d tokens (%s), about %.2f GiB in %s/%s; contexts of %d tokens; "
        "%d sequences, %d decoded together",
        name,
        context.tokens,
        "unified" if size.unified else "a part for each sequence",
        size.bytes / 2**30,
        options.cache_type_k,
        options.cache_type_v,
        length,
        size.slots,
        options.max_batch_size,
    )
